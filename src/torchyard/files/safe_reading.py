"""Read files that anyone may have put into a results directory, in bounded time and memory.

A file of a run may be a FIFO, a device, a socket, a directory, a link to /dev/zero, a file of
many gigabytes, or one that keeps growing. Every reader of results opens files here: only regular
files, never more bytes than a limit, and never beyond the size at the time of opening. Failures
are raised as OSError and ValueError, which callers turn into messages of their own.

Files of JSON lines may end with an incomplete line, left by a process that was killed. Only the
last line may be incomplete; any other line that cannot be parsed is reported as damage.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from torchyard.core.units import format_bytes
from torchyard.errors import ResultsDamaged


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; raise OSError for anything else."""
    # Not blocking: it may be a FIFO, or a FIFO may replace the file at this moment.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_regular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


LARGEST_DOCUMENT_BYTES: Final = 16 << 20
"""Limit of a file that is read as a whole, such as `run.json`."""
LARGEST_LINE_BYTES: Final = 8 << 20
"""Limit of one record. The largest one that a run writes, a failure with its log tail, has kilobytes."""
LARGEST_RECORDS_BYTES: Final = 4 << 30
"""Limit of a file of records that is read line by line."""
MOST_NESTED: Final = 64
"""Limit of nested lists and tables. Deeper nesting is valid JSON, but recursion over it would exhaust
the stack."""
_CHUNK_BYTES: Final = 1 << 20

_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


class LineTooLong(ValueError):
    """A line exceeds the limit of a record."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the line is longer than {format_bytes(LARGEST_LINE_BYTES)}")
        self.number = number


def read_document(path: Path, *, largest_bytes: int = LARGEST_DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file; raise OSError for any other file or a too large one."""
    with _Opened(path, largest_bytes) as file:
        return b"".join(file.chunks(0))


def read_json(path: Path, *, largest_bytes: int = LARGEST_DOCUMENT_BYTES) -> Any:
    """Return the JSON value in a file; raise OSError, or ValueError when it is invalid."""
    return parse_json(read_document(path, largest_bytes=largest_bytes))


def read_lines(
    path: Path, *, largest_bytes: int = LARGEST_RECORDS_BYTES
) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of every line, up to the size at the time of opening.

    Raises OSError, and LineTooLong at a line that exceeds the limit of a record.
    """
    with _Opened(path, largest_bytes) as file:
        number, rest = 1, b""
        for chunk in file.chunks(0):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if len(line) > LARGEST_LINE_BYTES:
                    raise LineTooLong(number)
                yield number, line + b"\n"
                number += 1
            if len(rest) > LARGEST_LINE_BYTES:
                raise LineTooLong(number)
        if rest:
            yield number, rest


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a regular file in hexadecimal; raise OSError when it is too large."""
    state = hashlib.sha256()
    with _Opened(path, LARGEST_RECORDS_BYTES) as file:
        for chunk in file.chunks(0):
            state.update(chunk)
    return state.hexdigest()


def read_tail(path: Path, size_bytes: int) -> bytes:
    """Return the last bytes of a regular file of any size."""
    with _Opened(path, None) as file:
        return b"".join(file.chunks(max(0, file.size_bytes - size_bytes)))


def read_tail_text(path: Path, size_bytes: int) -> str:
    """Return the last bytes of a file as text; empty if it cannot be read."""
    try:
        return read_tail(path, size_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def read_part(path: Path, start: int, size_bytes: int) -> bytes:
    """Return up to `size_bytes` bytes of a regular file from offset `start`."""
    with _Opened(path, None) as file:
        return file.read_at(start, max(0, min(size_bytes, file.size_bytes - start)))


def last_line(path: Path) -> bytes:
    """Return the last line with its newline, if any; raise OSError or LineTooLong."""
    pieces: list[bytes] = []
    with _Opened(path, LARGEST_RECORDS_BYTES) as file:
        end, read_bytes = file.size_bytes, 0
        while end > 0 and read_bytes <= LARGEST_LINE_BYTES + 1:
            start = max(0, end - (_CHUNK_BYTES >> 4))
            piece = file.read_at(start, end - start)
            # The newline at the end of the file belongs to the last line.
            cut = piece.rfind(b"\n", 0, len(piece) - (not pieces))
            pieces.append(piece[cut + 1 :])
            read_bytes += len(pieces[-1])
            if cut >= 0:
                break
            end = start
    if read_bytes > LARGEST_LINE_BYTES + 1:
        raise LineTooLong(0)
    return b"".join(reversed(pieces))


def parse_json(text: bytes) -> Any:
    """Return the JSON value; raise ValueError when it is invalid or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # The number of brackets bounds the depth: most records need no traversal.
    if text.count(b"[") + text.count(b"{") > MOST_NESTED and _is_too_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP: Final = f"lists and tables are nested more than {MOST_NESTED} levels deep"


def _is_too_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(MOST_NESTED + 1):
        inside: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inside.extend(part for part in item.values() if isinstance(part, (dict, list)))
            elif isinstance(item, list):
                inside.extend(part for part in item if isinstance(part, (dict, list)))
        if not inside:
            return False
        level = inside
    return True


class _Opened:
    """A regular file, open for reading, with its size at the time of opening."""

    def __init__(self, path: Path, largest_bytes: int | None) -> None:
        # Checked before it is opened: opening some devices has side effects.
        _check_regular(path, path.stat())
        self._file = open_regular_file(path)
        self.size_bytes = os.fstat(self._file.fileno()).st_size
        if largest_bytes is not None and self.size_bytes > largest_bytes:
            self._file.close()
            size, limit = format_bytes(self.size_bytes), format_bytes(largest_bytes)
            raise OSError(errno.EFBIG, f"it has {size}; the limit is {limit}", str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read_at(self, start: int, size_bytes: int) -> bytes:
        """Return bytes from offset `start`; fewer when the file has been truncated."""
        return os.pread(self._file.fileno(), size_bytes, start)

    def chunks(self, start: int) -> Iterator[bytes]:
        """Yield the content from offset `start` to the size at the time of opening."""
        while start < self.size_bytes:
            chunk = self.read_at(start, min(_CHUNK_BYTES, self.size_bytes - start))
            if not chunk:
                return
            start += len(chunk)
            yield chunk


def _check_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((name for test, name in _KINDS if test(status.st_mode)), "a special file")
    number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
    raise OSError(number, f"it is {kind}, not a regular file", str(path))


LARGEST_ROWS_BYTES: Final = 256 << 20
"""Limit of files whose records are all held in memory: comparisons and launches."""


def read_records(
    path: Path, *, largest_bytes: int = LARGEST_RECORDS_BYTES
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the record of every complete line; skip an incomplete last line."""
    try:
        incomplete: int | None = None
        for number, line in read_lines(path, largest_bytes=largest_bytes):
            if incomplete is not None:
                raise ResultsDamaged(
                    f"{path}, line {incomplete}: not a complete record",
                    why="a kill can only truncate the last line; this line was damaged in another way",
                    hint="restore the file from a backup, or remove that line to read the rest",
                )
            record = parse_record(line)
            if record is None:
                incomplete = number
            else:
                yield number, record
    except (OSError, LineTooLong) as error:
        raise unreadable_error(path, error) from error


def has_incomplete_last_line(path: Path) -> bool:
    """Whether the last line is incomplete; reads only the end. False for a missing file."""
    try:
        last = last_line(path)
    except FileNotFoundError:
        return False
    except (OSError, LineTooLong) as error:
        raise unreadable_error(path, error) from error
    return bool(last) and parse_record(last) is None


def unreadable_error(path: Path, error: OSError | LineTooLong) -> ResultsDamaged:
    """Return the error for a file that cannot be read."""
    hint = "restore it from a backup, or measure again"
    if isinstance(error, LineTooLong):
        place = f"line {error.number}" if error.number else "the last line"
        return ResultsDamaged(f"{path}, {place}: not a record", why=str(error), hint=hint)
    if isinstance(error, FileNotFoundError):
        return ResultsDamaged(f"{path} is missing", hint=hint)
    return ResultsDamaged(f"{path} cannot be read", why=error.strerror or str(error), hint=hint)


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line, or None if it is not a JSON object."""
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
