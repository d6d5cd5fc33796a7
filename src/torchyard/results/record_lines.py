"""Reading files of JSON lines that a killed process may have left with a torn end.

Only the last line can be torn by a kill; anything else that does not read is damage. Knows nothing
of what the lines mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchyard.errors import ResultsDamaged

__all__ = ["ends_torn", "read_records"]

_TAIL_BYTES = 1 << 16


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and record of every whole line; a torn last line is left out."""
    try:
        with path.open("rb") as file:
            unread: tuple[int, bytes] | None = None
            for number, line in enumerate(file, start=1):
                if unread is not None:
                    raise _damaged(path, unread[0])
                record = _parse(line)
                if record is None:
                    unread = (number, line)
                else:
                    yield number, record
    except FileNotFoundError as error:
        raise ResultsDamaged(
            f"{path} is missing", hint="put it back from a copy, or measure again"
        ) from error
    except OSError as error:
        raise ResultsDamaged(f"{path} cannot be read", why=str(error.strerror)) from error


def ends_torn(path: Path) -> bool:
    """Whether the last line was cut off; looks at the end of the file only."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            tail = b""
            while end > 0 and b"\n" not in tail[:-1]:
                start = max(0, end - _TAIL_BYTES)
                file.seek(start)
                tail = file.read(end - start) + tail
                end = start
    except OSError:
        return False
    last = tail[:-1].rpartition(b"\n")[2] + tail[-1:]
    return bool(last) and _parse(last) is None


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _damaged(path: Path, number: int) -> ResultsDamaged:
    return ResultsDamaged(
        f"{path}, line {number}: not a whole record",
        why="only the last line can be cut off by a kill; this one was changed or lost otherwise",
        hint="put the file back from a copy, or take that line out to read the rest",
    )
