"""Change-point detection in the history of one value: steps and drifts, with size and confidence.

`detection` is the entry point; `search` finds steps, `shape` distinguishes steps and drifts, `ranks`
holds the rank test that both rest on. `evaluation` is used only by tests and benchmarks.
"""
