"""Scan a results directory for changed run folders, and choose the location of the index file.

`run.json` is always replaced as a whole, as the last step of ending or changing a run. The scan
therefore needs one stat call per folder: modification time, size and inode of its `run.json`. Two
cases need more, which `full_mark` records when a folder is read:

- A run that is in progress or damaged can change without its `run.json`. It is not settled.
- Inodes are reused. Two replacements within one clock tick can end with the inode and the time of
  the first, so a folder that has just changed is not settled either.

SQLite relies on file locks, which are often missing or unreliable on network and user-space file
systems. The index of a results directory on one of those, or of a read-only one, is stored in the
user's cache folder. WAL mode needs memory shared by all users of a file and is not used.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from torchyard.errors import NotAllowed
from torchyard.results.directory import COMPARISONS_FILE, RECORD_FILES, RUN_FILE

INDEX_FILE: Final = ".index.sqlite"

_LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"}
    | {"tmpfs", "xfs", "zfs"}
)
"""Local file systems with reliable locks. All others are treated as network file systems."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
"""An octal escape in a mount point."""


def places_for(home: Path) -> list[Path]:
    """Return candidate files for the index, best first; empty if none is possible."""
    if not home.is_dir():
        return []
    places = []
    inside = home / INDEX_FILE
    # In a shared results directory the file may belong to another user.
    accessible = not inside.exists() or os.access(inside, os.R_OK | os.W_OK)
    if accessible and is_local(home) and os.access(home, os.W_OK | os.X_OK):
        places.append(inside)
    digest = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:16]
    cache = _cache_folder()
    if cache is not None:
        places.append(cache / f"index-{digest}.sqlite")
    return places


def is_local(folder: Path) -> bool:
    """Return whether the folder's file system has reliable locks."""
    return folder.exists() and file_system_of(folder) in _LOCAL


def file_system_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the file system type of a folder, such as `ext4` or `nfs4`; empty if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    device_number = ""
    with suppress(OSError):
        device = os.stat(folder).st_dev  # noqa: PTH116
        device_number = f"{os.major(device)}:{os.minor(device)}"
    by_device, by_path, longest = "", "", -1
    path = folder.resolve()
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:  # noqa: PLR2004 - see proc(5)
            continue
        kind = after.split()[0]
        if fields[2] == device_number:
            by_device = kind
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # The last of several mounts on one directory is the visible one.
        if path.is_relative_to(point) and len(point.parts) >= longest:
            by_path, longest = kind, len(point.parts)
    # Device numbers are exact, but stat shows a different one on some file systems (btrfs, overlay).
    return by_device or by_path


def _cache_folder() -> Path | None:
    named = os.environ.get("XDG_CACHE_HOME")
    base = Path(named) if named and Path(named).is_absolute() else None
    if base is None:
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "torchyard"


_MIN_FOR_THREADS: Final = 50
_THREADS: Final = 16
_SETTLING_S: Final = 3.0
"""Longer than the timestamp resolution of any file system; FAT has two seconds."""
_INSIDE: Final = f"/{RUN_FILE}"


class FullMark(NamedTuple):
    """Fingerprint of a folder when it is read."""

    facts: str
    """Fingerprint of `run.json`, which every scan compares."""
    rows: str = ""
    """Fingerprint of the comparisons; empty if there are none."""
    aged: bool = True
    """Whether both files were last changed more than `_SETTLING_S` ago."""


def marks_in(home: Path) -> dict[str, str]:
    """Return the mark of every run folder by name; empty if the results directory is missing."""
    try:
        # Folders that are being deleted or imported start with a dot.
        names = [
            name
            for name in os.listdir(home)  # noqa: PTH208 -- a path is made for each name otherwise
            if name[0] != "." and (name.isascii() or _is_text(name))
        ]
        # On a network file system each stat is a request: send several at once.
        threads = 1 if len(names) < _MIN_FOR_THREADS or is_local(home) else _THREADS
        return marks_of(home, names, threads=threads)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError as error:
        raise NotAllowed(
            f"cannot read {home}",
            why=str(error.strerror),
            hint="set TORCHYARD_HOME to a readable folder",
        ) from error


def marks_of(home: Path, names: list[str], *, threads: int = 1) -> dict[str, str]:
    """Return the marks of those folders that are runs."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def mark(name: str) -> str | None:
        try:
            # Relative to the folder, which is faster for thousands of stat calls.
            status = os.stat(name + _INSIDE, dir_fd=descriptor)
        except OSError:
            return "no run.json" if _has_records(home / name) else None
        return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"

    try:
        if threads == 1:
            marks = [mark(name) for name in names]
        else:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(threads) as pool:
                marks = list(pool.map(mark, names))
    finally:
        os.close(descriptor)
    return {name: mark for name, mark in zip(names, marks, strict=True) if mark is not None}


def digest_of(marks: dict[str, str]) -> str:
    """Return a digest of the folders and their marks, in order."""
    state = hashlib.sha256("\n".join(marks).encode())
    state.update(b"\0")  # not allowed in file names
    state.update("\n".join(marks.values()).encode())
    return state.hexdigest()


def full_mark(folder: Path) -> FullMark | None:
    """Return the mark of one folder before it is read; None if it is not a run."""
    now = time.time()
    try:
        facts = (folder / RUN_FILE).stat()
    except OSError:
        return FullMark("no run.json") if _has_records(folder) else None
    mark, aged = f"{facts.st_mtime_ns} {facts.st_size} {facts.st_ino}", _aged(facts, now)
    try:
        rows = (folder / COMPARISONS_FILE).stat()
    except OSError:
        return FullMark(mark, "", aged)
    return FullMark(mark, f"{rows.st_mtime_ns} {rows.st_size}", aged and _aged(rows, now))


def _aged(facts: os.stat_result, now: float) -> bool:
    # A copy may keep the old modification time; the change time is that of the copy.
    return all(abs(now - moment) > _SETTLING_S for moment in (facts.st_mtime, facts.st_ctime))


def _is_text(name: str) -> bool:
    """Return whether the name is valid UTF-8; other names cannot be written to JSON."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _has_records(folder: Path) -> bool:
    """Return whether the folder has records but no `run.json`; a new run has empty files only."""
    for name in RECORD_FILES:
        try:
            if (folder / name).stat().st_size > 0:
                return True
        except OSError:
            continue
    return False
