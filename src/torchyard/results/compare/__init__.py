"""Compare any two runs, variants of runs or saved baselines, as far as their data supports it.

`compare_sides` is the entry point, and pairs variants of one run; `two_runs` compares the others.
"""
