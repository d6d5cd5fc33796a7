"""Find wasted work in a PyTorch program by the values that its operators write.

`torchyard values SCRIPT` runs a program once with value profiling (`worker/values`), runs it again
without to confirm the findings, and measures what each fix would save. Where to look:

- `model.py`: findings, profiles, requests and their file format
- `profiled_run.py`: the whole sequence, from the program to a confirmed and stored profile
- `prices.py`, `gains.py`, `fix_runs.py`: what does it cost, what does a fix save
- `operator_sweep/`: the operators of one PyTorch build instead of a program
- `report/`: terminal, Markdown, JSON, DOT and HTML; `command.py`: the command line

`with torchyard.profile_values() as v:` profiles a block of code in its own process.
"""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchyard.values.context_manager import ValueProfiler


class _DeprecatedCall(ModuleType):
    """Keep `torchyard.values()` working in 0.1; delete the class and the assignment in 0.2."""

    def __call__(self, **options: Any) -> ValueProfiler:
        from torchyard.values.context_manager import ValueProfiler

        warnings.warn(
            "torchyard.values() is deprecated; use torchyard.profile_values()",
            DeprecationWarning,
            stacklevel=2,
        )
        return ValueProfiler(**options)


sys.modules[__name__].__class__ = _DeprecatedCall
