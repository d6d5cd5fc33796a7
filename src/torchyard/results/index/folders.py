"""Scan a results directory for changed run folders, and choose where the index file is kept.

`run.json` is always replaced as a whole, as the last step of ending or changing a run. The scan
therefore needs one stat call per folder: modification time, size and inode of its `run.json`. Two
cases need more, which `full_mark` records when a folder is read:

- A run that is in progress or damaged can change without its `run.json`. It is not settled.
- Inodes are reused. Two replacements within one clock tick can end with the inode and the time of
  the first, so a folder that has just changed is not settled either.

SQLite relies on file locks, which are often missing or wrong on network and user-space file
systems. The index of a results directory on one of those, or of a read-only one, is kept in the
cache folder of the user. WAL mode needs memory shared by all users of a file and is not used.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from torchyard.errors import NotAllowed
from torchyard.results.directory import COMPARISONS_FILE, RECORD_FILES, RUN_FILE

INDEX_FILE: Final = ".index.sqlite"

_LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"}
    | {"tmpfs", "xfs", "zfs"}
)
"""File systems of this machine whose locks hold. What is not named here counts as a network."""


def places_for(home: Path) -> list[Path]:
    """Files to try, best first; empty when there is no place to write, or no home yet."""
    if not home.is_dir():
        return []
    places = []
    inside = home / INDEX_FILE
    # In a home of several users the file may be another one's.
    ours = not inside.exists() or os.access(inside, os.R_OK | os.W_OK)
    if ours and is_local(home) and os.access(home, os.W_OK | os.X_OK):
        places.append(inside)
    digest = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:16]
    cache = _cache_folder()
    if cache is not None:
        places.append(cache / f"index-{digest}.sqlite")
    return places


def is_local(folder: Path) -> bool:
    """Whether locks on the folder's file system can be trusted."""
    return file_system_of(folder) in _LOCAL


def file_system_of(folder: Path) -> str:
    """The type of the file system that a folder is on, such as `ext4` or `nfs4`; empty if unknown."""
    try:
        device = os.stat(folder).st_dev  # noqa: PTH116
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    resolved = str(folder.resolve())
    by_device, by_path, longest = "", "", -1
    for line in lines.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:  # noqa: PLR2004
            continue
        kind = after.split()[0]
        if fields[2] == wanted:
            by_device = kind
        point = _unescaped(fields[4])
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:
            by_path, longest = kind, len(point)
    # Device numbers are exact; some file systems (btrfs, overlay) show another one to stat.
    return by_device or by_path


def _unescaped(point: str) -> str:
    """Mount points have blanks as octal escapes."""
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, letter)
    return point


def _cache_folder() -> Path | None:
    named = os.environ.get("XDG_CACHE_HOME")
    base = Path(named) if named and Path(named).is_absolute() else None
    if base is None:
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "torchyard"


_FEW: Final = 50
_THREADS: Final = 16
_SETTLING_S: Final = 3.0
"""Longer than a tick of any clock of a file system; that of FAT takes two seconds."""
_INSIDE: Final = f"/{RUN_FILE}"


class FullMark(NamedTuple):
    """What is noted of a folder when it is read."""

    facts: str
    """Of `run.json`: the mark that every look compares."""
    rows: str = ""
    """Of the comparisons; empty when there are none."""
    aged: bool = True
    """Whether both files had been left alone for a while."""


def marks_in(home: Path) -> dict[str, str]:
    """Name and mark of every run folder, in no order; nothing when there is no home yet."""
    try:
        # A dot begins the names of folders that are being removed or brought in.
        names = [
            name
            for name in os.listdir(home)  # noqa: PTH208 -- a path is made for each name otherwise
            if name[0] != "." and (name.isascii() or _is_text(name))
        ]
        # Elsewhere each look is a question to a server: many are on their way at once.
        threads = 1 if len(names) < _FEW or is_local(home) else _THREADS
        return marks_of(home, names, threads=threads)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError as error:
        raise NotAllowed(
            f"cannot look into {home}", why=str(error.strerror), hint="choose another home"
        ) from error


def marks_of(home: Path, names: list[str], *, threads: int = 1) -> dict[str, str]:
    """The marks of those folders that have one."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def mark(name: str) -> str | None:
        try:
            # From the folder on, which saves the way there; thousands of times at each look.
            found = os.stat(name + _INSIDE, dir_fd=descriptor)
        except OSError:
            return "no run.json" if _lost_facts(home / name) else None
        return f"{found.st_mtime_ns} {found.st_size} {found.st_ino}"

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
    """Alike for the same folders with the same marks in the same order only."""
    state = hashlib.sha256("\n".join(marks).encode())
    state.update(b"\0")  # in no name of a file
    state.update("\n".join(marks.values()).encode())
    return state.hexdigest()


def full_mark(folder: Path) -> FullMark | None:
    """Of one folder, before it is read; None when there is nothing of a run in it."""
    now = time.time()
    try:
        facts = (folder / RUN_FILE).stat()
    except OSError:
        return FullMark("no run.json") if _lost_facts(folder) else None
    mark, aged = f"{facts.st_mtime_ns} {facts.st_size} {facts.st_ino}", _aged(facts, now)
    try:
        rows = (folder / COMPARISONS_FILE).stat()
    except OSError:
        return FullMark(mark, "", aged)
    return FullMark(mark, f"{rows.st_mtime_ns} {rows.st_size}", aged and _aged(rows, now))


def _aged(facts: os.stat_result, now: float) -> bool:
    # A copy may have the old time of its content; when it was made is in the other one.
    return all(abs(now - moment) > _SETTLING_S for moment in (facts.st_mtime, facts.st_ctime))


def _is_text(name: str) -> bool:
    """A name that is no text was not given by us, and cannot be said in JSON or asked for."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _lost_facts(folder: Path) -> bool:
    """Whether records were written here; a run that is just beginning has only empty files."""
    for name in RECORD_FILES:
        try:
            if (folder / name).stat().st_size > 0:
                return True
        except OSError:
            continue
    return False
