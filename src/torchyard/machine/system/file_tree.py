"""Read and write /proc, /sys and /dev below a replaceable root, and run programs of the system.

The only module of this package that opens these files. Paths have no leading slash. What cannot be
read is returned with the reason; what cannot be written raises `WriteRefused`. Device files that
hold bytes instead of text are read at an offset, or held open with a value written. A copy of a
machine has only the programs in its `.kernel/programs`, where tests put them: a program of this
machine would change this machine.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from torchyard.core.cpu_lists import cpus_of_list
from torchyard.errors import MissingTool, NotAllowed, StepFailed
from torchyard.process.programs import capture

CPU: Final = "sys/devices/system/cpu"

Value = TypeVar("Value")
Other = TypeVar("Other")


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[Value]):
    """A value that was read, or why there is none."""

    value: Value | None = None
    because: str = ""
    """Empty if and only if there is a value."""
    code: int | None = None
    """The NVML error code, if any."""

    def map(self, change: Callable[[Value], Other]) -> Answer[Other]:
        """Convert the value; the reason is kept if there is none."""
        if self.value is None:
            return Answer(because=self.because, code=self.code)
        return Answer(value=change(self.value))

    def or_raise(self, hint: str = "") -> Value:
        """Return the value; raises MissingTool if there is none."""
        if self.value is None:
            raise MissingTool(f"cannot read {self.because}", hint=hint)
        return self.value


class Reading(Answer[str]):
    """The text of a file, or why it could not be read."""

    @property
    def text(self) -> str:
        """The text; empty if it could not be read."""
        return self.value or ""

    @property
    def number(self) -> int | None:
        """The value as an integer; None if it is not one."""
        try:
            return None if self.value is None else int(self.value, 0)
        except ValueError:
            return None

    @property
    def fields(self) -> dict[str, str]:
        """The `name: value` lines; the first of each name counts."""
        pairs = [line.partition(":") for line in self.text.splitlines() if ":" in line]
        return {name.strip(): value.strip() for name, _, value in reversed(pairs)}

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs or nodes of a list; empty if it is unavailable or invalid."""
        try:
            return cpus_of_list(self.text)
        except ValueError:
            return ()


class WriteRefused(NotAllowed):
    """The kernel refused a write; `code` is the errno."""

    def __init__(self, path: str, value: str, error: OSError, *, verb: str = "") -> None:
        """Describe the refused write; `verb` for folders, which are made and removed."""
        action = f"{verb} /{path}" if verb else f"write {value!r} to /{path}"
        super().__init__(
            f"cannot {action}: {error.strerror or error}",
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
        """Return the path on this machine."""
        return self.root / path

    def exists(self, path: str) -> bool:
        """Whether the file or folder exists and is visible to this user."""
        try:
            return self.path(path).exists()
        except (OSError, ValueError):
            return False

    def read(self, path: str) -> Reading:
        """Read the whole text without trailing newlines. An empty file is an empty text."""
        try:
            text = self.path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return Reading(because=f"/{path}: {error.strerror or error}")
        except ValueError as error:  # a path from a damaged file, with a null character
            return Reading(because=f"{path!r}: {error}")
        return Reading(value=text.rstrip("\n"))

    def hold(self, path: str) -> HeldFile:
        """Open a file that is read repeatedly; it must be closed."""
        return HeldFile(self.path(path), f"/{path}")

    def paths(self, pattern: str) -> list[str]:
        """Return the matching paths in natural order (cpu2 before cpu10)."""
        matches = (str(path.relative_to(self.root)) for path in self.root.glob(pattern))
        return sorted(matches, key=_natural)

    def names(self, folder: str) -> list[str]:
        """List a folder in natural order; empty if it cannot be read."""
        try:
            return sorted((entry.name for entry in self.path(folder).iterdir()), key=_natural)
        except OSError:
            return []

    def write(self, path: str, value: str) -> None:
        """Write the value in one system call; never creates a file."""
        try:
            descriptor = os.open(self.path(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(descriptor, value.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise WriteRefused(path, value, error) from error

    def writable(self, path: str) -> bool:
        """Whether this user may write it; False on a read-only mount, even for root.

        Also False for a file without write permission, which root may open: the write is refused.
        """
        place = self.path(path)
        try:
            return os.access(place, os.W_OK) and bool(place.stat().st_mode & 0o222)
        except OSError:
            return False

    def make_folder(self, path: str) -> None:
        """Create one folder, such as a control group."""
        try:
            self.path(path).mkdir()
        except OSError as error:
            raise WriteRefused(path, "", error, verb="make") from error

    def remove_folder(self, path: str) -> None:
        """Remove one folder with the files that the kernel put into it."""
        try:
            self.path(path).rmdir()
        except OSError as error:
            raise WriteRefused(path, "", error, verb="remove") from error


class HeldFile:
    """A file kept open, because opening costs more than reading.

    Reading `/proc/pressure/memory` took 3 us with a held descriptor and 28 us with `FileTree.read`.
    The kernel generates the text again for every read from the start of the file.
    """

    _CHUNK_BYTES = 1 << 14

    def __init__(self, path: Path, shown: str) -> None:
        self._descriptor: int | None = None
        self.because = ""
        """Why it cannot be read; empty if it can."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.pread(self._descriptor, 1, 0)  # some files can be opened but not read
        except OSError as error:
            self.because = f"{shown}: {error.strerror or error}"
            self.close()

    def read(self) -> bytes:
        """Read the whole text; empty if it cannot be read."""
        if self._descriptor is None:
            return b""
        text = b""
        try:
            while chunk := os.pread(self._descriptor, self._CHUNK_BYTES, len(text)):
                text += chunk  # the kernel returns long tables a page at a time
        except OSError:
            return b""
        return text

    def close(self) -> None:
        """Close the file; later reads are empty."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def unescaped(text: str) -> str:
    """Return a path of /proc/mounts or /proc/swaps, which write blanks as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key in which numbers count as numbers and come after other letters."""
    parts = re.findall(r"(\d+)|(\D)", f"{text}\0")
    return [(int(digits) if digits else -1, letter) for digits, letter in parts]


def read_device(files: FileTree, path: str, *, size_bytes: int, offset: int = 0) -> Answer[bytes]:
    """Read at most `size_bytes` in one system call; empty past the end of a plain file."""
    try:
        descriptor = os.open(files.path(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return Answer(value=os.pread(descriptor, size_bytes, offset))
        finally:
            os.close(descriptor)
    except OSError as error:
        return Answer(because=f"/{path}: {error.strerror or error}")


class HeldDevice:
    """A device that keeps a written value as long as it is open."""

    def __init__(self, files: FileTree, path: str, value: bytes) -> None:
        """Open and write; raises WriteRefused."""
        self._descriptor = -1
        try:
            # Not inherited by child programs: only this process holds the value.
            self._descriptor = os.open(files.path(path), os.O_RDWR | os.O_CLOEXEC)
            os.write(self._descriptor, value)
        except OSError as error:
            self.close()
            raise WriteRefused(path, value.hex(), error) from error

    def release(self, value: bytes) -> None:
        """Write a last value and close: a forked child may still have it open."""
        if self._descriptor >= 0:
            os.pwrite(self._descriptor, value, 0)
            self.close()

    def close(self) -> None:
        """Close the device. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def empty_copy(files: FileTree, path: str) -> None:
    """Empty a plain file that stands for a device in a copy of a machine."""
    place = files.path(path)
    if stat.S_ISREG(place.stat().st_mode):
        os.truncate(place, 0)


_COPY_PROGRAMS: Final = ".kernel/programs"
_ROOT_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")
_LAST_LINES: Final = 3


def find_program(files: FileTree, name: str) -> str | None:
    """Return the path of a program, or None."""
    if not files.live:
        return shutil.which(name, path=str(files.path(_COPY_PROGRAMS)))
    # The PATH of sudo and cron often lacks the folders of root's programs. Relative and empty
    # entries depend on the working directory: root must not run programs from there.
    path_folders = os.environ.get("PATH", "").split(os.pathsep)
    folders = [folder for folder in (*path_folders, *_ROOT_FOLDERS) if folder.startswith("/")]
    return shutil.which(name, path=os.pathsep.join(folders))


def missing_programs(files: FileTree, *names: str) -> str:
    """Return why programs are unavailable; empty if all are installed."""
    missing = [name for name in names if find_program(files, name) is None]
    if not missing:
        return ""
    where = "installed" if files.live else "in this copy of a machine"
    return f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not {where}"


def run_program(files: FileTree, name: str, *arguments: str, limit_s: float) -> str:
    """Run a program and return its stdout; raises if it fails."""
    program = find_program(files, name)
    if program is None:
        raise MissingTool(
            missing_programs(files, name), hint=f"install the package that contains {name}"
        )
    line = shlex.join((name, *arguments))
    variables = {**os.environ, "LC_ALL": "C", "SYSTEMD_PAGER": ""}
    try:
        completed = capture([program, *arguments], variables=variables, limit_s=limit_s)
    except subprocess.TimeoutExpired:
        raise StepFailed(f"`{line}` timed out after {limit_s:g} s") from None
    except OSError as error:
        raise MissingTool(f"cannot run {program}: {error.strerror or error}") from error
    if completed.returncode != 0:
        output = " / ".join(completed.stderr.strip().splitlines()[-_LAST_LINES:])
        raise StepFailed(
            f"`{line}` failed with exit code {completed.returncode}: {output or 'no output'}"
        )
    return completed.stdout
