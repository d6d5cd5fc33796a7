"""Read and write /proc, /sys and /dev below a replaceable root, for tests and copies of machines.

The only module of this package that opens these files. Paths have no leading slash. What cannot be
read is returned with the reason; what cannot be written raises `WriteRefused`. Device files that
hold bytes instead of text are read at an offset, or held open with a value written.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from torchyard.errors import NotAllowed


@dataclass(frozen=True, kw_only=True)
class Found:
    """A value that was read, or why not."""

    value: str | None = None
    because: str = ""

    @property
    def number(self) -> int | None:
        """The value as a whole number; None when it is none."""
        try:
            return None if self.value is None else int(self.value, 0)
        except ValueError:
            return None


class WriteRefused(NotAllowed):
    """The kernel does not take a value; `code` is the errno."""

    def __init__(self, path: str, value: str, error: OSError, *, verb: str = "") -> None:
        """`verb` for folders, which are made and removed, not written."""
        doing = f"{verb} /{path}" if verb else f"write {value!r} to /{path}"
        super().__init__(
            f"cannot {doing}: {error.strerror or error}",
            hint="run as root, outside a container"
            if error.errno in (errno.EACCES, errno.EPERM)
            else "",
        )
        self.code = error.errno or 0


class FileTree:
    """Reads and writes below `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    @property
    def live(self) -> bool:
        """Whether this is the running machine and not a copy."""
        return self.root == Path("/")

    def path(self, path: str) -> Path:
        """Where it is on this machine."""
        return self.root / path

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder, as far as this user may look."""
        try:
            return self.path(path).exists()
        except (OSError, ValueError):
            return False

    def read(self, path: str) -> Found:
        """The whole text without the last newline. An empty file is an empty text."""
        try:
            text = self.path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return Found(because=f"/{path}: {error.strerror or error}")
        except ValueError as error:  # a path out of a damaged file, with a zero in it
            return Found(because=f"{path!r}: {error}")
        return Found(value=text.rstrip("\n"))

    def hold(self, path: str) -> HeldFile:
        """A file that is read again and again; it is opened now and must be closed."""
        return HeldFile(self.path(path), f"/{path}")

    def paths(self, pattern: str) -> list[str]:
        """Paths that match, in natural order (cpu2 before cpu10)."""
        found = (str(path.relative_to(self.root)) for path in self.root.glob(pattern))
        return sorted(found, key=_natural)

    def names(self, folder: str) -> list[str]:
        """What is in a folder, in natural order; nothing when it cannot be read."""
        try:
            return sorted((entry.name for entry in self.path(folder).iterdir()), key=_natural)
        except OSError:
            return []

    def write(self, path: str, value: str) -> None:
        """Hand the value to the kernel in one write; never makes a file."""
        try:
            descriptor = os.open(self.path(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(descriptor, value.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise WriteRefused(path, value, error) from error

    def writable(self, path: str) -> bool:
        """Whether this user may write it (a read-only mount says no even to root).

        A file that nobody may write is not, although root may open it: the write is refused.
        """
        place = self.path(path)
        try:
            return os.access(place, os.W_OK) and bool(place.stat().st_mode & 0o222)
        except OSError:
            return False

    def make_folder(self, path: str) -> None:
        """Make one folder: how the kernel is asked for a control group."""
        try:
            self.path(path).mkdir()
        except OSError as error:
            raise WriteRefused(path, "", error, verb="make") from error

    def remove_folder(self, path: str) -> None:
        """Remove one folder; what the kernel put into it goes with it."""
        try:
            self.path(path).rmdir()
        except OSError as error:
            raise WriteRefused(path, "", error, verb="remove") from error


class HeldFile:
    """A file kept open, because opening costs more than the kernel's answer.

    Reading `/proc/pressure/memory` took 3 us with a held descriptor and 28 us with `FileTree.read`.
    The kernel makes the text of such a file anew for every read from its beginning.
    """

    _PIECE_BYTES = 1 << 14

    def __init__(self, path: Path, shown: str) -> None:
        self._descriptor: int | None = None
        self.because = ""
        """Why it cannot be read; empty when it can."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.pread(self._descriptor, 1, 0)  # some files open for everybody and read for nobody
        except OSError as error:
            self.because = f"{shown}: {error.strerror or error}"
            self.close()

    def read(self) -> bytes:
        """The whole text; empty when it cannot be read (any more)."""
        if self._descriptor is None:
            return b""
        text = b""
        try:
            while piece := os.pread(self._descriptor, self._PIECE_BYTES, len(text)):
                text += piece  # the kernel hands out long tables a page at a time
        except OSError:
            return b""
        return text

    def close(self) -> None:
        """Give the descriptor back; later reads are empty."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _natural(text: str) -> list[tuple[int, str]]:
    parts: list[tuple[int, str]] = []
    digits = ""
    for letter in text + "\0":
        if letter.isdecimal():  # a digit such as ² is no number to Python
            digits += letter
            continue
        if digits:
            parts.append((int(digits), ""))
            digits = ""
        parts.append((-1, letter))
    return parts


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
