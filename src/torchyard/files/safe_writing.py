"""Write files so that their content survives a kill, a power failure and a full disk.

Two operations are enough for a run: replace a small file as a whole, or append complete lines to
a file. This module does not know what the lines mean.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torchyard.errors import NotAllowed, StepFailed, TorchyardError

__all__ = ["RecordFile", "replace_file", "to_json_text", "write_failed"]

_SPACE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PLACE_ERRORS = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
_PERMISSION_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS}


def to_json_text(value: object, *, indent: int | None = None) -> str:
    """ASCII JSON: logs may hold bytes that were no text, and escapes carry those safely.

    NaN and infinity are written as Python writes and reads them, so that a failed estimate stays
    what it was. Values JSON has no form for (paths in machine facts) become their text.
    """
    return json.dumps(value, indent=indent, default=str, ensure_ascii=True)


def replace_file(path: Path, text: str) -> None:
    """Put `text` at `path`: a reader sees all of the old file or all of the new one.

    The folder is synced too, because a rename is only in memory until its folder is written.
    """
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            # mkstemp makes files that only the owner reads; a run is as readable as the umask says.
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        raise write_failed(path, error, kept="the earlier version of this file") from error


def write_failed(path: Path, error: OSError, *, kept: str) -> TorchyardError:
    """The error for a write that the operating system refused, saying what is kept."""
    what = f"cannot write {path}: {error.strerror or error}"
    if error.errno in _PERMISSION_ERRORS:
        return NotAllowed(what, why=f"{kept} is kept", hint="choose a folder you may write to")
    if error.errno in _SPACE_ERRORS:
        hint = f"free some space, or choose a folder on another disk than that of {path.parent}"
    elif error.errno in _PLACE_ERRORS:
        hint = "nothing can be made at that place: choose another folder"
    else:
        hint = "check the disk that holds the folder, then try again"
    return StepFailed(what, why=f"{kept} is kept", hint=hint)


class RecordFile:
    """A file of JSON lines that only grows, by whole lines."""

    def __init__(self, path: Path) -> None:
        """Make the file; one that exists belongs to another run and raises FileExistsError."""
        self.path = path
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        self._size_bytes = 0
        self.records = 0

    def append(self, *records: Mapping[str, object]) -> None:
        """Hand whole lines to the operating system: they outlive this process from here on."""
        lines = "".join(to_json_text(record) + "\n" for record in records).encode("ascii")
        view = memoryview(lines)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            # Half a line would damage the file as soon as another write succeeds behind it.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size_bytes)
            raise write_failed(self.path, error, kept=self._kept()) from error
        self._size_bytes += len(lines)
        self.records += len(records)

    def sync(self) -> None:
        """Wait until everything appended is on the disk: it outlives a power cut from here on."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise write_failed(self.path, error, kept=self._kept()) from error

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
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
