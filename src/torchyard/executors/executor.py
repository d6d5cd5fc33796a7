"""What an executor is: it runs one command per cell and tells how each ended.

The command (`torchyard sweep-cell FOLDER CELL`) writes everything that was measured into the sweep's
folder by itself, and whether it began and ended. An executor says what the command cannot say of
itself: that it waits in a queue, was killed, ran out of time or memory, or lost its machine. It knows
nothing of studies and of what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torchyard.core.sweep import Outcome

__all__ = ["Ended", "Executor", "Job", "JobState"]

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
