"""Stored runs: run folders, their index, baselines, comparisons, history and the regression gate.

Run folders are authoritative: `run_writer` writes one, `run_reader` reads one. `index` is
an SQLite cache over all of them. `compare` compares any two runs, variants or baselines,
`history` finds changes over time, and `gate` fails when a limit is exceeded. Nothing here
measures.
"""
