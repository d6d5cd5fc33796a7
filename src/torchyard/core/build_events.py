"""Progress of a build: the only thing a user interface listens to. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["BuildEvent", "BuildEventKind", "BuildListener", "ignore_build_events"]

BuildEventKind = Literal["start", "skip", "progress", "done", "failed", "note"]


@dataclass(frozen=True, kw_only=True)
class BuildEvent:
    """Something that happened to a step."""

    kind: BuildEventKind
    step: str = ""
    text: str = ""
    done: int = 0
    """Of ninja's own count; 0 where there is none."""
    total: int = 0
    elapsed_s: float = 0.0
    remaining_s: float | None = None
    """None where nothing is known."""


BuildListener = Callable[[BuildEvent], None]


def ignore_build_events(event: BuildEvent) -> None:
    """The listener of whoever does not listen."""
