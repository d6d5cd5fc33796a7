"""The progress of a run as a file in its folder, for readers in other processes.

    progress.jsonl   one line per event, oldest first; it only grows, and stays small

Progress is worth nothing once the run has ended, so nothing here is synced, a write that fails ends
the file and not the run, and a reader takes a missing file for an empty one. Knows nothing of what
the events mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from torchyard.errors import TorchyardError
from torchyard.results.bounded_read import parse_json, read_part
from torchyard.results.durable import RecordFile, to_json_text
from torchyard.results.layout import PROGRESS_FILE

__all__ = ["LARGEST_BYTES", "ProgressFile", "ProgressTail"]

LARGEST_BYTES: Final = 2 << 20
"""Nothing is added beyond this, so that a run of days leaves a folder that is read at once."""
_PAUSE_S: Final = 0.5
_PAUSE_DOUBLES_BYTES: Final = 128 << 10
"""Passing events come many times a second. Each 128 KiB of file doubles the pause between two that
are kept: at 200 bytes an event, 1 MiB lasts for about a day."""
_READ_BYTES: Final = 256 << 10


class ProgressFile:
    """What the one process that runs the bench adds to."""

    def __init__(self, folder: Path, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Make the file in the run folder; where that fails, nothing is ever added."""
        self._now_s = now_s
        self._size_bytes = 0
        self._next_s = 0.0
        self._file: RecordFile | None = None
        try:
            self._file = RecordFile(folder / PROGRESS_FILE)
        except OSError:
            return

    def add(self, record: Mapping[str, object], *, passing: bool) -> None:
        """Add a line; a passing event is left out when another one was kept just before."""
        if self._file is None or (passing and self._now_s() < self._next_s):
            return
        size_bytes = len(to_json_text(record)) + 1
        if self._size_bytes + size_bytes > LARGEST_BYTES:
            return
        try:
            self._file.append(record)
        except TorchyardError:
            # A disk that is full: the run itself will say so when it has something to lose.
            self.close()
            return
        self._size_bytes += size_bytes
        self._next_s = self._now_s() + _PAUSE_S * 2 ** (self._size_bytes // _PAUSE_DOUBLES_BYTES)

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ProgressTail:
    """Reads what was added since the last look."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS_FILE
        self._place_bytes = 0
        self._rest = b""

    def more(self) -> list[dict[str, Any]]:
        """The whole lines that are new; those that are no records are left out."""
        try:
            # A file that somebody else put here may be of any kind and size.
            wanted_bytes = min(_READ_BYTES, max(0, LARGEST_BYTES - self._place_bytes))
            data = read_part(self._path, self._place_bytes, wanted_bytes)
        except OSError:
            return []
        self._place_bytes += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [record for line in lines if (record := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
