"""Compiled regions: the buffers of kernels that Inductor generated, observed like operators.

`generated_module.py` reads the generated Python module, `source_operators.py` finds the operators and source lines of a
buffer, `kernel_observer.py` observes each call of a kernel. Patterns, findings and reports are those of operators.
"""
