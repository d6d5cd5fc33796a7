"""Advisers: what makes measurements worse on this machine, with the evidence and a suggested fix.

Each module advises on one subject; `machine/view.py` runs and ranks them. Advisers read only, and
judge with the readers of `facts`; what a knob could write is asked of the knobs.
"""
