"""Whether jobs on other nodes can work with the folder of a sweep, as far as this node can know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from torchyard.errors import UsageError

__all__ = ["check_place", "file_system_of"]

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_OF_A_CONTAINER: Final = frozenset({"overlay", "squashfs"})
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def check_place(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> tuple[str, ...]:
    """What to tell the user about the folder; raises UsageError when Slurm cannot write there."""
    wrong = [mark for mark in "%\\\n" if mark in str(folder)]
    if wrong:
        raise UsageError(
            f"{str(folder)!r} cannot be the folder of a sweep on Slurm",
            why=f"{wrong[0]!r} has a meaning of its own in Slurm's names of files",
            hint="name a folder with letters, digits, dashes and dots",
        )
    kind = file_system_of(folder, mounts)
    if kind in _IN_MEMORY:
        return (
            f"{folder} is in the memory of this node ({kind}): jobs on other nodes cannot see it",
        )
    if kind in _OF_A_CONTAINER:
        return (f"{folder} is inside a container ({kind}): jobs may not see it",)
    return ()


def file_system_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The kind of file system that holds the folder: `nfs4`, `ext4`; empty where it is not known."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    path = folder.resolve()
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or not kinds:  # noqa: PLR2004 - see proc(5)
            continue
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # The last of several mounts on one place is the one that is seen.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), kinds[0]
    return kind
