"""The Python API: compare two callables, measure one, sweep suites, and read runs, from a program or a notebook.

    import torchyard

    result = torchyard.compare(net, "inductor", inputs=(x,))
    print(result.verdict, result.speedup, result.interval)

Every name of this package is also an attribute of `torchyard`, which imports it on first use.
"""

from torchyard.api.comparing import compare, measure
from torchyard.api.result import Comparison, Measurement, Run, read_run
from torchyard.api.sweeping import Sweep, sweep

__all__ = ["Comparison", "Measurement", "Run", "Sweep", "compare", "measure", "read_run", "sweep"]
