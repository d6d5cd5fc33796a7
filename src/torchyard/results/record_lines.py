"""Reading files of JSON lines that a killed process may have left with a torn end.

Only the last line can be torn by a kill; anything else that does not read is damage. Knows nothing
of what the lines mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from torchyard.errors import ResultsDamaged
from torchyard.results.bounded_read import (
    LARGEST_RECORDS_BYTES,
    LineTooLong,
    last_line,
    parse_json,
    read_lines,
)

__all__ = ["LARGEST_ROWS_BYTES", "ends_torn", "read_records", "unreadable"]

LARGEST_ROWS_BYTES: Final = 256 << 20
"""Of files whose records are held in memory together: comparisons and launches."""


def read_records(
    path: Path, *, largest_bytes: int = LARGEST_RECORDS_BYTES
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and record of every whole line; a torn last line is left out."""
    try:
        unread: int | None = None
        for number, line in read_lines(path, largest_bytes=largest_bytes):
            if unread is not None:
                raise _damaged(path, unread)
            record = _parse(line)
            if record is None:
                unread = number
            else:
                yield number, record
    except (OSError, LineTooLong) as error:
        raise unreadable(path, error) from error


def ends_torn(path: Path) -> bool:
    """Whether the last line was cut off; reads the end of the file only. A missing file is not torn."""
    try:
        last = last_line(path)
    except FileNotFoundError:
        return False
    except (OSError, LineTooLong) as error:
        raise unreadable(path, error) from error
    return bool(last) and _parse(last) is None


def unreadable(path: Path, error: OSError | LineTooLong) -> ResultsDamaged:
    """What to say of a file that cannot be read, with the fix."""
    hint = "put it back from a copy, or measure again"
    if isinstance(error, LineTooLong):
        place = f"line {error.number}" if error.number else "the last line"
        return ResultsDamaged(f"{path}, {place}: not a record", why=str(error), hint=hint)
    if isinstance(error, FileNotFoundError):
        return ResultsDamaged(f"{path} is missing", hint=hint)
    return ResultsDamaged(f"{path} cannot be read", why=error.strerror or str(error), hint=hint)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _damaged(path: Path, number: int) -> ResultsDamaged:
    return ResultsDamaged(
        f"{path}, line {number}: not a whole record",
        why="only the last line can be cut off by a kill; this one was changed or lost otherwise",
        hint="put the file back from a copy, or take that line out to read the rest",
    )
