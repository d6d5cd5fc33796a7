"""The accuracy check: decide whether the results of a candidate are correct.

`checks` says what is checked when, `judge` compares results with a float64 reference, `rules` has the rule for each
tensor. The tolerance of a tensor comes from simulated rounding of the same computation (`reference`, `tolerances`).
"""
