"""Write files so that their content survives a kill, a power failure and a full disk.

A run needs two operations: replace a small file as a whole, and append complete lines to a file.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from torchyard.errors import NotAllowed, StepFailed, TorchyardError

_SPACE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PLACE_ERRORS = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
_PERMISSION_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS}


def to_json_text(value: object, *, indent: int | None = None) -> str:
    """Return the value as ASCII JSON: escapes preserve undecodable bytes of logs.

    NaN and infinity are written in the form of Python's `json` module, so that they can be read back.
    Values without a JSON type (paths in machine facts) are converted by `str`.
    """
    return json.dumps(value, indent=indent, default=str, ensure_ascii=True)


def replace_file(path: Path, text: str) -> None:
    """Replace a text file atomically, as `replace_bytes` does."""
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace the file atomically: a reader sees either the old or the new content.

    The directory is synced too, because a rename is durable only once its directory is written. `mode` are its
    permissions [default: those of a new file].
    """
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            # mkstemp creates files readable by the owner only; apply the umask instead.
            os.fchmod(file.fileno(), 0o666 & ~_umask() if mode is None else mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        raise write_error(path, error, kept="the earlier version of this file") from error


def replace_json(path: Path, value: object) -> None:
    """Replace a JSON file atomically; its directory is created."""
    with write_errors(path, kept="existing data"):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, to_json_text(value, indent=1) + "\n")


@contextmanager
def write_errors(path: Path, *, kept: str) -> Iterator[None]:
    """Turn an OSError of the block into the error for a failed write, as `write_error` does."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error, kept=kept) from error


def write_error(path: Path, error: OSError, *, kept: str) -> TorchyardError:
    """Return the error for a failed write; `kept` names what is preserved."""
    what = f"cannot write {path}: {error.strerror or error}"
    if error.errno in _PERMISSION_ERRORS:
        return NotAllowed(what, why=f"{kept} is kept", hint="choose a writable directory")
    if error.errno in _SPACE_ERRORS:
        hint = f"free some space, or choose a directory on another disk than {path.parent}"
    elif error.errno in _PLACE_ERRORS:
        hint = "choose another directory"
    else:
        hint = "check the disk, then try again"
    return StepFailed(what, why=f"{kept} is kept", hint=hint)


class RecordFile:
    """An append-only file of JSON lines."""

    def __init__(self, path: Path) -> None:
        """Create the file; an existing one belongs to another run and raises FileExistsError."""
        self.path = path
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        self._size_bytes = 0
        self.records = 0

    def append(self, *records: Mapping[str, object]) -> None:
        """Write complete lines; they survive the end of this process."""
        lines = "".join(to_json_text(record) + "\n" for record in records).encode("ascii")
        view = memoryview(lines)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            # An incomplete line would damage the file if a later write succeeded.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size_bytes)
            raise write_error(self.path, error, kept=self._kept()) from error
        self._size_bytes += len(lines)
        self.records += len(records)

    def sync(self) -> None:
        """Wait until all appended lines are on disk; they then survive a power failure."""
        with write_errors(self.path, kept=self._kept()):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _kept(self) -> str:
        noun = "record" if self.records == 1 else "records"
        return f"everything written before ({self.records} {noun} in this file)"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
