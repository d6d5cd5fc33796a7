"""Progress events of a run, for the user interface. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torchyard.core.comparison import Comparison

EventKind = Literal[
    "run", "workload", "phase", "launch", "look", "comparison", "warning", "paused", "resumed"
]
"""`paused`: a cell of a sweep waits for its next launch, without processes; `resumed`: it starts."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """A progress event."""

    kind: EventKind
    text: str
    workload: str = ""
    fraction: float | None = None
    """Completed fraction of the run, 0 to 1; None when the event does not change it."""
    remaining_s: float | None = None
    """Expected time until the run ends; None when unknown."""
    comparison: Comparison | None = None


Listener = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """No-op listener."""
