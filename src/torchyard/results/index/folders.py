"""What a home holds now: its run folders and the marks by which a change is seen. Reads no record.

A mark is made of the times and sizes of the two files that an entry comes from. `run.json` is
always replaced as a whole, so its inode tells two writes within one tick of the clock apart.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from torchyard.errors import NotAllowed
from torchyard.results.index.place import is_local
from torchyard.results.layout import COMPARISONS_FILE, RECORD_FILES, RUN_FILE

__all__ = ["mark_of", "marks_in", "marks_of"]

_FEW: Final = 50
_THREADS: Final = 16


def marks_in(home: Path) -> dict[str, str]:
    """Name and mark of every run folder, in no order; nothing when there is no home yet."""
    try:
        with os.scandir(home) as entries:
            # A dot begins the names of folders that are being removed or brought in.
            names = [entry.name for entry in entries if entry.name[0] != "." and _is_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError as error:
        raise NotAllowed(
            f"cannot look into {home}", why=str(error.strerror), hint="choose another home"
        ) from error
    # Elsewhere each look is a question to a server: many are on their way at once.
    threads = 1 if len(names) < _FEW or is_local(home) else _THREADS
    return marks_of(home, names, threads=threads)


def marks_of(home: Path, names: list[str], *, threads: int = 1) -> dict[str, str]:
    """The marks of those folders that have one."""
    place = str(home)
    paths = (f"{place}/{name}" for name in names)
    if threads == 1:
        found = dict(zip(names, map(mark_of, paths), strict=True))
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            found = dict(zip(names, pool.map(mark_of, paths), strict=True))
    return {name: mark for name, mark in found.items() if mark is not None}


def mark_of(folder: str | Path) -> str | None:
    """The mark of one folder; None when there is nothing of a run in it."""
    try:
        run = os.stat(f"{folder}/{RUN_FILE}")  # noqa: PTH116 -- thousands of times at each refresh
    except OSError:
        return "no run.json" if _lost_facts(folder) else None
    try:
        rows = os.stat(f"{folder}/{COMPARISONS_FILE}")  # noqa: PTH116
    except OSError:
        return f"{run.st_mtime_ns} {run.st_size} {run.st_ino}"
    return f"{run.st_mtime_ns} {run.st_size} {run.st_ino} {rows.st_mtime_ns} {rows.st_size}"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        # A name that is no text was not given by us, and cannot be said in JSON or asked for.
        entry.name.encode("utf-8")
        return entry.is_dir()
    except (OSError, UnicodeEncodeError):
        return False


def _lost_facts(folder: str | Path) -> bool:
    """Whether records were written here; a run that is just beginning has only empty files."""
    for name in RECORD_FILES:
        try:
            if os.stat(f"{folder}/{name}").st_size > 0:  # noqa: PTH116
                return True
        except OSError:
            continue
    return False
