"""The executor that a sweep asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torchyard.core.sweep import ExecutorChoice
from torchyard.executors.executor import Executor

__all__ = ["check_choice", "open_executor"]


def check_choice(choice: ExecutorChoice) -> None:
    """Raises UsageError for options that the executor does not take; starts and asks nothing."""
    if choice.name == "slurm":
        from torchyard.executors.slurm_options import read_options

        read_options(choice.options)
    else:
        from torchyard.executors.local import read_at_most

        read_at_most(dict(choice.options))


def open_executor(
    choice: ExecutorChoice,
    folder: Path,
    command: Callable[[str], Sequence[str]],
    log: Callable[[str], Path],
    *,
    limit_s: float | None = None,
) -> Executor:
    """`command` and `log` say what runs for a cell and where it prints; `limit_s` is for one attempt."""
    check_choice(choice)
    if choice.name == "slurm":
        from torchyard.executors.slurm import SlurmExecutor
        from torchyard.executors.slurm_options import read_options

        options = read_options(choice.options)
        return SlurmExecutor(folder, command, log, options=options, limit_s=limit_s)
    from torchyard.executors.local import LocalExecutor, read_at_most

    return LocalExecutor(
        command,
        log,
        limit_s=limit_s,
        at_most=read_at_most(dict(choice.options)),
        turn_folder=folder / "turn",
    )
