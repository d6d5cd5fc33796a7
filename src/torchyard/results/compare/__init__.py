"""Compare any two runs, variants of runs or saved baselines, as far as their data supports it.

`compare_sides` is the entry point; it uses `same_run` for variants of one run and `two_runs`
otherwise.
"""
