"""Statistics of comparisons. Pure functions: no I/O, no clock, no knowledge of any capability."""
