"""The part of Torchyard that runs inside the target: Python 3.8, the standard library and torch only."""
