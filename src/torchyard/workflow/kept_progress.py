"""Events of a bench run, kept in its folder on their way to whoever listens.

A dashboard in another process shows a run that is going from this. Only what is shown while waiting
is kept: the comparisons themselves are written by the run.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from torchyard.core.events import Event, EventKind, Listener
from torchyard.results.progress_file import ProgressFile

__all__ = ["KeptProgress"]

_PASSING: Final[frozenset[EventKind]] = frozenset({"phase", "launch", "look"})
_LONGEST_TEXT: Final = 400
"""Messages of failures can hold whole logs."""


class KeptProgress:
    """A listener that keeps an event and hands it on."""

    def __init__(self, folder: Path, listener: Listener) -> None:
        self._file = ProgressFile(folder)
        self._listener = listener

    def listen(self, event: Event) -> None:
        """Keep, then tell."""
        self._file.add(_record(event), passing=event.kind in _PASSING)
        self._listener(event)

    def close(self) -> None:
        """No more events."""
        self._file.close()


def _record(event: Event) -> dict[str, object]:
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record: dict[str, Any] = {
        "at": moment,
        "kind": event.kind,
        "workload": event.workload[:_LONGEST_TEXT],
        "text": event.text[:_LONGEST_TEXT],
        "fraction": None if event.fraction is None else round(event.fraction, 4),
    }
    made = event.comparison
    if made is not None:
        record["candidate"] = made.candidate[:_LONGEST_TEXT]
        record["verdict"] = made.state.value
        record["trusted"] = made.trusted
        speedup = made.estimate.speedup if made.estimate is not None else math.nan
        record["speedup"] = speedup if math.isfinite(speedup) else None
    return record
