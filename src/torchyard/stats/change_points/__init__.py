"""Change-point detection in the history of one value: steps and drifts, with size and confidence.

`detection` is the entry point; `search` finds steps, `shape` tells steps from drifts, `ranks`
holds the rank test that both rest on. `evaluation` is used only by tests and benchmarks.
"""
