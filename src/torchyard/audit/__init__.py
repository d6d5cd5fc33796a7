"""`torchyard machine audit`, and the measured effect of `torchyard machine quiet`.

An audit measures identical code against itself, with the load monitor running, and reports the
smallest difference that a comparison can detect on this machine and what disturbs it.
"""
