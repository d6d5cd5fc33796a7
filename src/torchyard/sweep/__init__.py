"""Bench whole suites: suites times modes, precisions and candidates, locally or on Slurm.

`plan.py` expands a request to a SweepPlan of cells, `execution.py` hands cells to an executor
(`executors/`), `cell.py` measures one cell inside a job, and `summary.py` computes means,
corrections and false alarms over all cells. A cell is one workload in one precision with all its
candidates; its result is an ordinary run folder.

`torchyard.sweep(...)` calls this package: see `api/sweeping.py`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """Module type with which `torchyard.sweep` is both the function of the Python API and this package."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run `torchyard.api.sweep`."""
        return import_module("torchyard.api").sweep(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage
