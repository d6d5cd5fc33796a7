"""The index of runs: an SQLite cache over all run folders of a results directory.

`store` is the entry point. The index can be deleted at any time and is rebuilt from the run
folders.
"""
