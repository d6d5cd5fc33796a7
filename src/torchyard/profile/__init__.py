"""`torchyard profile`: run a program under torch.profiler, perf, callgrind, nsys, ncu and others.

`tools/` has the profilers, `tool_run.py` runs one around a program, `model.py` is the
common result and its file, `report.py` shows it.
"""
