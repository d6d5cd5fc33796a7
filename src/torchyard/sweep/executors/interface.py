"""The executor interface, and the choice of an executor.

An executor runs one command per cell and reports how each ended. The command (`torchyard sweep-cell
FOLDER CELL`) writes all measurements, and its own start and end, into the sweep's folder. An executor
adds states that the command cannot record: it is queued, was killed, exceeded its time or memory limit,
or lost its machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from torchyard.sweep.launch_order import LaunchOrder
from torchyard.sweep.model import ExecutorChoice, Outcome

JobState = Literal["queued", "running", "paused"]
"""`paused`: it waits for its next launch."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A submitted cell that has not ended."""

    cell: str
    state: JobState
    place: str = ""
    text: str = ""
    """Why it is queued, if the executor reports that."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A cell whose command has ended; `finished` if its exit code was 0."""

    cell: str
    outcome: Outcome
    why: str = ""


class Executor(Protocol):
    """Runs cells. Only one driver of a sweep may use an executor at a time."""

    def submit(self, cells: Sequence[str]) -> None:
        """Submit cells by id; returns before they have run."""

    def poll(self) -> tuple[list[Job], list[Ended]]:
        """Return queued and running cells, and those that ended since the last call."""

    def wait(self, pause_s: float) -> None:
        """Wait until the next call of `poll` is useful, at most `pause_s`."""

    def cancel(self) -> None:
        """Cancel all submitted cells and wait until they have ended."""

    def detach(self) -> str:
        """Prepare for the end of the driver: cluster jobs continue, local ones end.

        Returns a message for the user.
        """


def check_choice(choice: ExecutorChoice) -> None:
    """Raise UsageError for options that the executor does not have; starts nothing."""
    if choice.name == "slurm":
        from torchyard.sweep.executors.slurm.job_options import read_options

        read_options(choice.options)
    else:
        from torchyard.sweep.executors.local import read_at_most, read_reserved

        read_at_most(dict(choice.options))
        read_reserved(dict(choice.options))


def open_executor(
    choice: ExecutorChoice,
    folder: Path,
    command: Callable[[str], Sequence[str]],
    log: Callable[[str], Path],
    *,
    limit_s: float | None = None,
    order: LaunchOrder | None = None,
    deadline_s: float = math.inf,
    reserved: Sequence[int] = (),
    nodes: int = 1,
) -> Executor:
    """Open an executor.

    `command` and `log` return the command and the log file of a cell. `limit_s` is the time limit of
    one attempt. `order`, `deadline_s`, the end of the time budget, and `reserved`, the CPUs of the timed
    cell, apply to the local executor; `nodes`, the nodes of each job, to Slurm.
    """
    check_choice(choice)
    if choice.name == "slurm":
        from torchyard.sweep.executors.slurm.job_options import read_options
        from torchyard.sweep.executors.slurm.submission import SlurmExecutor

        options = replace(read_options(choice.options), nodes=nodes)
        return SlurmExecutor(folder, command, log, options=options, limit_s=limit_s)
    from torchyard.sweep.executors.local import LocalExecutor, read_at_most

    return LocalExecutor(
        command,
        log,
        limit_s=limit_s,
        at_most=read_at_most(dict(choice.options)),
        turn_folder=folder / "turn",
        reserved=reserved,
        order=order,
        deadline_s=deadline_s,
    )
