"""Cpuset control groups: find them, list and move their tasks, create and remove our own.

Versions 1 and 2 look alike here: a group is a directory, its members are the numbers in a file. Our
own groups for isolated cores are

    GROUP/measure/...   tasks that measure
    GROUP/house/...     all other tasks (version 1 only)

Below `measure` and `house` the original tree of groups is mirrored, and a task from PATH is moved
to PATH there. The kernel itself thus records where each task belongs: tasks started meanwhile are
found in the right place, no list is needed, and any process can move all tasks back at any time,
also after a kill.
"""

from __future__ import annotations

import errno
import re
import time
from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.errors import MissingTool, NotAllowed
from torchyard.machine.system.file_tree import FileTree, WriteRefused

_MOVING_S: Final = 5.0
"""Tasks that are started while others are moved appear in the next round. One that is ending is not
moved, and is gone by itself: in a moment, or when it gets a core for it."""
_BUSY_S: Final = 2.0
"""A task that has just ended holds its group for a moment."""


@dataclass(frozen=True, kw_only=True)
class Cpusets:
    """One tree of groups."""

    version: Literal[1, 2]
    top: str
    """Where it is mounted, below the root."""

    @property
    def members(self) -> str:
        """The file with the members: threads in version 1, processes in version 2."""
        return "tasks" if self.version == 1 else "cgroup.procs"

    @property
    def effective(self) -> str:
        """The file with the processors that a group has in the end."""
        return "cpuset.effective_cpus" if self.version == 1 else "cpuset.cpus.effective"

    def numbers(self, files: FileTree, group: str) -> list[int]:
        """The members of a group; nothing when it is gone."""
        text = files.read(f"{group}/{self.members}").value or ""
        return [int(word) for word in text.split() if word.isdigit()]

    def group_of(self, files: FileTree, number: int | str) -> str | None:
        """The group of a task, below the root; None when the task is gone."""
        for line in (files.read(f"proc/{number}/cgroup").value or "").splitlines():
            _, controllers, path = (line + "::").split(":", 2)
            own = "cpuset" in controllers.split(",") if self.version == 1 else not controllers
            if own:
                group = f"{self.top}/{path.removesuffix('::').strip('/')}".rstrip("/")
                # A container may be shown the path that its group has outside.
                return group if files.exists(group) else self.top
        return None

    def move(self, files: FileTree, source: str, goal: str) -> list[int]:
        """Move all members until none is left; returns those that the kernel does not move."""
        stuck: set[int] = set()
        seen: list[int] = []
        deadline = time.monotonic() + _MOVING_S
        while time.monotonic() < deadline:
            waiting = [number for number in self.numbers(files, source) if number not in stuck]
            if not waiting:
                break
            if waiting == seen:
                time.sleep(0.001)
            seen = waiting
            for number in waiting:
                if not self.put(files, goal, number):
                    stuck.add(number)
        return sorted(stuck)

    def put(self, files: FileTree, group: str, number: int) -> bool:
        """Put one task into a group; False when it is bound to where it is."""
        try:
            files.write(f"{group}/{self.members}", str(number))
        except WriteRefused as error:
            if error.code == errno.ESRCH:  # it ended meanwhile
                return True
            if error.code == errno.EINVAL:
                return False
            raise
        return True

    def remove(self, files: FileTree, group: str) -> None:
        """Remove a group without members and groups."""
        deadline = time.monotonic() + _BUSY_S
        while files.exists(group):
            try:
                files.remove_folder(group)
            except WriteRefused as error:
                if error.code == errno.ENOENT:
                    return
                if error.code != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def find_cpusets(files: FileTree) -> Cpusets:
    """The tree that has the controller `cpuset`; raises MissingTool when there is none."""
    found = files.read("proc/mounts")
    second: str | None = None
    for line in (found.value or "").splitlines():
        match line.split():
            case [_, place, "cgroup", options, *_] if "cpuset" in options.split(","):
                return Cpusets(version=1, top=_plain(place))
            case [_, place, "cgroup2", *_]:
                second = second or _plain(place)
    if second is None:
        raise MissingTool(found.because or "no control groups are mounted here")
    controllers = files.read(f"{second}/cgroup.controllers")
    if "cpuset" not in (controllers.value or "").split():
        raise MissingTool(f"the control groups of /{second} have no controller `cpuset`")
    return Cpusets(version=2, top=second)


def folders_below(files: FileTree, folder: str) -> list[str]:
    """Every folder inside, those inside others first."""
    found: list[str] = []
    for name in files.names(folder):
        path = f"{folder}/{name}"
        if files.path(path).is_dir():
            found += [*folders_below(files, path), path]
    return found


def _plain(place: str) -> str:
    """A mount point without a leading slash, and with blanks as they are."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), place).strip("/")


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
