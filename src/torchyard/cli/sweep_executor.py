"""The executor of a sweep: which command runs for a cell, and where it prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchyard.executors.executor import Executor
    from torchyard.results.sweep_folder import SweepFolder

__all__ = ["command_of_cell", "executor_of"]


def command_of_cell(folder: SweepFolder, cell: str) -> list[str]:
    """The hidden command, by this interpreter: a node of a cluster sees the same files."""
    return [sys.executable, "-m", "torchyard", "sweep-cell", str(folder.folder), cell]


def executor_of(folder: SweepFolder) -> Executor:
    """The executor that the sweep's plan names."""
    from torchyard.executors.local import LocalExecutor

    return LocalExecutor(
        lambda cell: command_of_cell(folder, cell),
        folder.log_path,
        limit_s=folder.plan.limits.cell_s,
    )
