"""The executor interface, and the choice of an executor.

An executor runs one command per cell and reports how each ended. The command (`torchyard sweep-cell
FOLDER CELL`) itself writes everything that was measured into the sweep's folder, and whether it
started and ended. An executor adds what the command cannot know: that it waits in a queue, was
killed, ran out of time or memory, or lost its machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from torchyard.sweep.model import ExecutorChoice, Outcome

JobState = Literal["queued", "running"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell that was handed in and has not ended."""

    cell: str
    state: JobState
    place: str = ""
    text: str = ""
    """Why it waits, where the executor knows."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A cell whose command is over; `finished` when it ended by itself with exit code 0."""

    cell: str
    outcome: Outcome
    why: str = ""


class Executor(Protocol):
    """Runs cells. Only one driver of a sweep uses an executor at a time."""

    def submit(self, cells: Sequence[str]) -> None:
        """Hand in cells by id; returns before they have run."""

    def poll(self) -> tuple[list[Job], list[Ended]]:
        """What waits or runs now, and what has ended since the last call. Never blocks for long."""

    def cancel(self) -> None:
        """End everything that was handed in and wait until it is gone."""

    def leave(self) -> str:
        """The driver goes away: jobs on a cluster go on, those here end. What to tell the user."""


def check_choice(choice: ExecutorChoice) -> None:
    """Raises UsageError for options that the executor does not take; starts and asks nothing."""
    if choice.name == "slurm":
        from torchyard.sweep.executors.slurm.job_options import read_options

        read_options(choice.options)
    else:
        from torchyard.sweep.executors.local import read_at_most

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
        from torchyard.sweep.executors.slurm.job_options import read_options
        from torchyard.sweep.executors.slurm.submission import SlurmExecutor

        options = read_options(choice.options)
        return SlurmExecutor(folder, command, log, options=options, limit_s=limit_s)
    from torchyard.sweep.executors.local import LocalExecutor, read_at_most

    return LocalExecutor(
        command,
        log,
        limit_s=limit_s,
        at_most=read_at_most(dict(choice.options)),
        turn_folder=folder / "turn",
    )
