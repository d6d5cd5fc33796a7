"""The executor of a sweep: which command runs for a cell, and where it prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchyard.core.sweep import SweepPlan
    from torchyard.executors.executor import Executor
    from torchyard.results.sweep_folder import SweepFolder

__all__ = ["check_executor_is_here", "command_of_cell", "executor_of"]


def command_of_cell(folder: SweepFolder, cell: str) -> list[str]:
    """The hidden command, by this interpreter: a node of a cluster sees the same files."""
    return [sys.executable, "-m", "torchyard", "sweep-cell", str(folder.folder), cell]


def executor_of(folder: SweepFolder) -> Executor:
    """The executor that the sweep's plan names."""
    from torchyard.executors.choose import open_executor

    return open_executor(
        folder.plan.executor,
        folder.folder,
        lambda cell: command_of_cell(folder, cell),
        folder.log_path,
        limit_s=folder.plan.limits.cell_s,
    )


def check_executor_is_here(plan: SweepPlan) -> None:
    """Raise MissingTool before anything is written when the plan's cluster cannot be asked from here."""
    if plan.executor.name == "slurm":
        from torchyard.executors.slurm_tools import check_tools

        check_tools()
