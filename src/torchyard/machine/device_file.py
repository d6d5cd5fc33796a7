"""Devices that speak bytes and not text: read at a place, or hold open with a value written.

The part of `FileTree` for such files; paths are below its root. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from torchyard.machine.file_tree import FileTree, WriteRefused

__all__ = ["FoundBytes", "HeldDevice", "empty_copy", "read_device"]


@dataclass(frozen=True, kw_only=True)
class FoundBytes:
    """Bytes that were read, or why not."""

    value: bytes | None = None
    because: str = ""


def read_device(files: FileTree, path: str, *, size_bytes: int, offset: int = 0) -> FoundBytes:
    """At most so many bytes, in one read; none from a plain file that is shorter."""
    try:
        descriptor = os.open(files.path(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return FoundBytes(value=os.pread(descriptor, size_bytes, offset))
        finally:
            os.close(descriptor)
    except OSError as error:
        return FoundBytes(because=f"/{path}: {error.strerror or error}")


class HeldDevice:
    """A device that keeps what was written for as long as it is open."""

    def __init__(self, files: FileTree, path: str, value: bytes) -> None:
        """Open and write; raises WriteRefused."""
        self._descriptor = -1
        try:
            # Not for programs that are started: only this process holds the value.
            self._descriptor = os.open(files.path(path), os.O_RDWR | os.O_CLOEXEC)
            os.write(self._descriptor, value)
        except OSError as error:
            self.close()
            raise WriteRefused(path, value.hex(), error) from error

    def release(self, value: bytes) -> None:
        """Write a last value and close: a copy of this process from fork() may have it open, too."""
        if self._descriptor >= 0:
            os.pwrite(self._descriptor, value, 0)
            self.close()

    def close(self) -> None:
        """Let go; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def empty_copy(files: FileTree, path: str) -> None:
    """A plain file that stands for a device keeps what was written: forget it as the device does."""
    place = files.path(path)
    if stat.S_ISREG(place.stat().st_mode):
        os.truncate(place, 0)
