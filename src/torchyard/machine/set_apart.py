"""Our own groups for cores that are set apart: made, entered, and taken down without a trace.

    GROUP/measure/...   tasks that measure
    GROUP/house/...     everybody else (version 1 only)

Below `measure` and `house` stands the tree of groups again, and a task from PATH is put into PATH
there. So the kernel itself remembers where each one belongs: those who were started meanwhile are
found in the right place, nobody has to be listed, and any process can put everybody back at any
time, also after a kill.
"""

from __future__ import annotations

import errno
from typing import Final

from torchyard.core.processor_lists import cpu_list, cpus_of_list
from torchyard.errors import MissingTool, NotAllowed
from torchyard.machine.cpusets import Cpusets, folders_below
from torchyard.machine.file_tree import FileTree, WriteRefused

__all__ = ["GROUP", "HOUSE", "MEASURE", "make_mirror", "measuring_group", "origin_of", "take_down"]

GROUP: Final = "torchyard"
MEASURE: Final = "measure"
HOUSE: Final = "house"

_TRY_PARENT: Final = (errno.EBUSY, errno.ENOSPC, errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP)
"""What groups answer that are gone, or may not have members of their own."""


def origin_of(ours: str, group: str) -> str:
    """Where a group of ours, or any other, has its tasks from."""
    for part in (MEASURE, HOUSE):
        prefix = f"{ours}/{part}"
        if group == prefix or group.startswith(f"{prefix}/"):
            return f"{ours.rpartition('/')[0]}{group.removeprefix(prefix)}"
    return group


def make_mirror(files: FileTree, cpusets: Cpusets, *, ours: str, part: str, origin: str) -> str:
    """The group in `part` that stands for `origin`, made where it is not there yet."""
    base = ours.rpartition("/")[0]
    if origin != base and not origin.startswith(f"{base}/"):
        raise NotAllowed(
            f"/{origin} is no group below /{base}", why="tasks from there could not be put back"
        )
    mirror, real = f"{ours}/{part}", base
    for name in origin.removeprefix(base).strip("/").split("/"):
        if not name:
            continue
        parent, mirror, real = mirror, f"{mirror}/{name}", f"{real}/{name}"
        if files.exists(mirror):
            continue
        files.make_folder(mirror)
        if cpusets.version == 1:
            for file in ("cpuset.cpus", "cpuset.mems"):
                files.write(f"{mirror}/{file}", _common(files, real, parent, file))
    return mirror


def measuring_group(files: FileTree, cpusets: Cpusets, ours: str, number: int) -> str:
    """The group that a task enters to measure; raises when no cores are set apart."""
    if not files.exists(f"{ours}/{MEASURE}"):
        raise MissingTool(f"no cores are set apart: there is no group /{ours}/{MEASURE}")
    group = cpusets.group_of(files, number)
    if group is None:
        raise MissingTool(f"there is no process {number}")
    origin = origin_of(ours, group)
    return make_mirror(files, cpusets, ours=ours, part=MEASURE, origin=origin)


def take_down(files: FileTree, cpusets: Cpusets, ours: str) -> None:
    """Put every task back to where it was, and remove our groups. Nothing there is fine."""
    if not files.exists(ours):
        return
    base = ours.rpartition("/")[0]
    for group in [*folders_below(files, ours), ours]:
        origin = origin_of(ours, group)
        if origin.startswith(ours):  # not one of those that we make
            origin = base
        while cpusets.numbers(files, group):
            try:
                cpusets.move(files, group, origin)
                break
            except WriteRefused as error:
                # Its group was removed meanwhile: the next one above is the nearest to it.
                if error.code not in _TRY_PARENT or origin == base:
                    raise
                origin = origin.rpartition("/")[0]
        cpusets.remove(files, group)


def _common(files: FileTree, origin: str, parent: str, file: str) -> str:
    """What the origin has of what the parent may give; all of that when there is nothing common."""
    own, given = (
        cpus_of_list(files.read(f"{group}/{file}").value or "") for group in (origin, parent)
    )
    return cpu_list(tuple(one for one in own if one in given) or given)
