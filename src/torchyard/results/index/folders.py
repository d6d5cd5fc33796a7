"""What a home holds now: its run folders and the marks by which a change is seen. Reads no record.

`run.json` is always replaced as a whole, and whatever changes a run that has ended, or ends it, does
so at last. So the look at all folders asks the operating system one question for each: time of
change, size and inode of its `run.json`. Two cases need more, which `full_mark` notes when a folder
is read:

- A run that is going on, or is damaged, can change without its `run.json`. It is not settled.
- Inodes are given out again. Two replaces within one tick of the clock can end with the inode and
  the time of the first; so a folder that changed a moment ago is not settled either.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from torchyard.errors import NotAllowed
from torchyard.results.index.place import is_local
from torchyard.results.layout import COMPARISONS_FILE, RECORD_FILES, RUN_FILE

__all__ = ["FullMark", "digest_of", "full_mark", "marks_in", "marks_of"]

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
