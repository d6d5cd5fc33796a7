"""What was found in histories before, so that a new point costs as little as one point can.

Kept in a file beside the index of runs; it may be removed at any time, and one that cannot be read
or written is done without. An entry counts only for exactly the points that it was made from, told
by their digest. Knows nothing of how changes are found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchyard.core.stored import SeriesPoint
from torchyard.errors import TorchyardError
from torchyard.results.bounded_read import read_json
from torchyard.results.durable import replace_file
from torchyard.results.record_lines import LARGEST_ROWS_BYTES

__all__ = ["HistoryMemory", "Remembered", "digest_of"]

_FORMAT: Final = 1
"""Raised when what is kept, or the method that makes it, changes."""


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What is known of a series."""

    digest: str
    """Of all points that were judged."""
    found: Any
    """What was found in them, as plain values."""
    settled_points: int = 0
    settled_digest: str = ""
    settled: Any = None
    """What will not change any more, whatever points come after those."""


class HistoryMemory:
    """In memory, and in a file if there is a place for one."""

    def __init__(self, place: Path | None = None) -> None:
        self.place = place
        self._known = _read(place) if place is not None else {}
        self._changed = False

    def recall(self, key: str) -> Remembered | None:
        """What is known under the key."""
        entry = self._known.get(key)
        if not isinstance(entry, dict):
            return None
        try:
            return Remembered(**entry)
        except TypeError:
            return None

    def keep(self, key: str, found: Remembered) -> None:
        """Remember it until the next `save`."""
        self._known[key] = dict(vars(found))
        self._changed = True

    def save(self) -> None:
        """Write what is new; a full or read-only disk costs only the time saved next time."""
        if self.place is None or not self._changed:
            return
        text = json.dumps({"format": _FORMAT, "series": self._known}, separators=(",", ":"))
        with suppress(TorchyardError):
            replace_file(self.place, text)
            self._changed = False


def digest_of(points: Sequence[SeriesPoint]) -> str:
    """Alike for the same runs and values only."""
    state = hashlib.sha256()
    for point in points:
        state.update(repr((point.run, point.value, point.low, point.high)).encode())
    return state.hexdigest()


def _read(place: Path) -> dict[str, Any]:
    try:
        document = read_json(place, largest_bytes=LARGEST_ROWS_BYTES)
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        return {}
    known = document.get("series")
    return known if isinstance(known, dict) else {}
