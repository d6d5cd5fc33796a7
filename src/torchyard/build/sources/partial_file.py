"""The file that a download grows in, before it has its name.

Keeps beside itself which address and which state of the remote file its bytes belong to. Knows
nothing of HTTP but the word validator.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchyard.build.sources.addresses import without_credentials
from torchyard.errors import StepFailed, TorchyardError
from torchyard.results.durable import write_failed

__all__ = ["PartialFile", "WriteFailed", "alone", "write_all"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WriteFailed(Exception):
    """Our disk, and not the server, ended the transfer: no reason to ask again."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class PartialFile:
    """`NAME.part`, and `NAME.part.json` that says what it is a part of."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".part")
        self.name = path.name
        self._note = path.with_name(path.name + ".part.json")

    def beginning(self, address: str) -> tuple[int, str]:
        """How much of `address` is here, and its validator; 0 when it cannot be gone on with."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            size_bytes = self.path.stat().st_size
        except (OSError, ValueError):
            return 0, ""
        if not isinstance(note, dict) or note.get("address") != without_credentials(address):
            return 0, ""
        validator = note.get("validator")
        return (size_bytes, validator) if isinstance(validator, str) and validator else (0, "")

    def remember(self, address: str, validator: str) -> None:
        """Note what the bytes that come now belong to."""
        text = json.dumps({"address": without_credentials(address), "validator": validator})
        try:
            self._note.write_text(text, encoding="utf-8")
        except OSError as error:
            raise WriteFailed(error) from error

    def check_room(self, more_bytes: int) -> None:
        """Say that the disk is too small before an hour of downloading, not after."""
        free = shutil.disk_usage(self.path.parent).free
        if more_bytes > free:
            reason = f"{more_bytes:,} bytes are needed, {free:,} are free"
            raise WriteFailed(OSError(errno.ENOSPC, reason))

    @contextmanager
    def opened(self, *, keep: int) -> Iterator[int]:
        """A descriptor behind the first `keep` bytes; the rest is cut off."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise WriteFailed(error) from error
        try:
            os.ftruncate(descriptor, keep)
            os.lseek(descriptor, keep, os.SEEK_SET)
            yield descriptor
        finally:
            os.close(descriptor)

    def forget(self) -> None:
        """Remove it: nothing of it may be used."""
        for path in (self.path, self._note):
            with suppress(OSError):
                path.unlink()

    def arrive(self, path: Path) -> None:
        """Give it its name."""
        self.path.replace(path)
        self._note.unlink(missing_ok=True)

    def no_room(self, error: OSError) -> TorchyardError:
        """The error for a disk that refuses; the part is removed, it only takes space."""
        self.forget()
        if error.errno not in _FULL:
            return write_failed(self.path, error, kept="what was there before")
        return StepFailed(
            f"the disk that holds {self.path.parent} is full",
            why=f"{error.strerror or error}; the half download of {self.name} was removed",
            hint="free some space, or set TORCHYARD_HOME to a folder on another disk",
        )


def write_all(descriptor: int, chunk: bytes) -> None:
    """All of a chunk; an empty one, the last, waits for the disk."""
    try:
        if not chunk:
            os.fsync(descriptor)
        while chunk:
            chunk = chunk[os.write(descriptor, chunk) :]
    except OSError as error:
        raise WriteFailed(error) from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Two builds that want the same file wait for each other; the second finds it finished."""
    lock = path.with_name(path.name + ".part.lock")
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise write_failed(path, error, kept="what was there before") from error
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Whoever held it removed it at the end, and a third one may have made a new one.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                break
        os.close(descriptor)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(descriptor)
