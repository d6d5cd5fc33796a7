"""Decide whether the results of a candidate are right.

Three files answer the question: `checks` says what is checked and when (before timing, in timed blocks, after the
last block), `judge` compares results with a reference in float64, `rules` holds the rule for each tensor. The
tolerance of a tensor comes from simulated rounding of the same computation (`reference`, `tolerances`).
"""
