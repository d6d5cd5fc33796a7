"""Which work of a program is wasted, seen in its values. Runs inside the target.

Standard library and torch only, Python 3.8 and newer.
"""
