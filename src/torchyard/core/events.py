"""Progress events of a run: the only thing that a user interface listens to. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torchyard.core.comparison import Comparison

__all__ = ["Event", "EventKind", "Listener", "ignore_events"]

EventKind = Literal["run", "workload", "phase", "launch", "look", "comparison", "warning"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, in words and as a fraction of the whole run."""

    kind: EventKind
    text: str
    workload: str = ""
    fraction: float | None = None
    """How much of the run is done, 0 to 1; None when this event does not move it."""
    comparison: Comparison | None = None


Listener = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """The listener of whoever does not listen."""
