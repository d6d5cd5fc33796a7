"""Tasks (processes and their threads), their CPU affinity, and cpuset control groups.

Versions 1 and 2 of control groups look alike here: a group is a directory, its members are the
numbers in a file. Our own groups for isolated cores are

    GROUP/measure/...   tasks that measure
    GROUP/house/...     all other tasks (version 1 only)

Below `measure` and `house` the original tree of groups is mirrored, and a task from PATH is moved
to PATH there. The kernel itself thus records where each task belongs: tasks started meanwhile are
found in the right place, no list is needed, and any process can move all tasks back at any time,
also after a kill.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.errors import MissingTool, NotAllowed
from torchyard.machine.system.file_tree import FileTree, WriteRefused, unescaped

_KERNEL_THREAD: Final = 0x00200000
_BOUND: Final = 0x04000000
"""PF_KTHREAD and PF_NO_SETAFFINITY of include/linux/sched.h."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One thread, of a process or of the kernel."""

    number: int
    name: str
    state: str
    parent: int
    start_ticks: int
    """Identifies a task together with its number, because numbers are reused."""
    of_kernel: bool
    bound: bool
    """Whether the kernel forbids changing its affinity."""
    nice: int
    cpu_ticks: int
    """CPU time in user and kernel mode."""
    processor: int
    """CPU on which it ran last; -1 if unknown."""


def tasks_of(files: FileTree, process: str) -> Iterator[int]:
    """Yield the thread IDs of a process, or of all processes with `*`."""
    processes = [name for name in files.names("proc") if name.isdigit()]
    for pid in processes if process == "*" else [process]:
        threads = [name for name in files.names(f"proc/{pid}/task") if name.isdigit()]
        yield from map(int, threads or [pid])


def read_task(files: FileTree, number: int | str) -> Task | None:
    """Read a task from its `stat` file; None if it is gone."""
    text = files.read(f"proc/{number}/stat").text
    # The name may contain blanks and parentheses: the fields follow the last one.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    try:
        flags = int(fields[6])
        return Task(
            number=int(head.split(maxsplit=1)[0]),
            name=head.partition("(")[2],
            state=fields[0],
            parent=int(fields[1]),
            start_ticks=int(fields[19]),
            of_kernel=bool(flags & _KERNEL_THREAD),
            bound=bool(flags & _BOUND),
            nice=int(fields[16]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            processor=int(fields[36]) if len(fields) > 36 else -1,  # noqa: PLR2004
        )
    except (IndexError, ValueError):
        return None


def read_allowed(files: FileTree, number: int | str) -> str | None:
    """Return the CPUs a task may run on, as a list; None if it is gone."""
    return files.read(f"proc/{number}/status").fields.get("Cpus_allowed_list")


_MOVING_S: Final = 5.0
"""Tasks that start while others are moved appear in the next pass. A task that is exiting is not
moved, and disappears by itself."""
_BUSY_S: Final = 2.0
"""A task that has just exited holds its group for a moment."""


@dataclass(frozen=True, kw_only=True)
class Cpusets:
    """A mounted cpuset hierarchy."""

    version: Literal[1, 2]
    top: str
    """Mount point without leading and trailing slashes."""

    @property
    def members(self) -> str:
        """Name of the file with the members: threads in version 1, processes in version 2."""
        return "tasks" if self.version == 1 else "cgroup.procs"

    @property
    def effective(self) -> str:
        """Name of the file with the effective CPUs of a group."""
        return "cpuset.effective_cpus" if self.version == 1 else "cpuset.cpus.effective"

    def numbers(self, files: FileTree, group: str) -> list[int]:
        """Return the members of a group; empty if it is gone."""
        text = files.read(f"{group}/{self.members}").text
        return [int(word) for word in text.split() if word.isdigit()]

    def group_of(self, files: FileTree, number: int | str) -> str | None:
        """Return the group of a task; None if the task is gone."""
        for line in files.read(f"proc/{number}/cgroup").text.splitlines():
            _, controllers, path = (line + "::").split(":", 2)
            own = "cpuset" in controllers.split(",") if self.version == 1 else not controllers
            if own:
                group = f"{self.top}/{path.removesuffix('::').strip('/')}".rstrip("/")
                # A container may see the host's path of its group.
                return group if files.exists(group) else self.top
        return None

    def move(self, files: FileTree, source: str, goal: str) -> list[int]:
        """Move all members until none is left; return those that the kernel does not move."""
        stuck: set[int] = set()
        previous: list[int] = []
        deadline = time.monotonic() + _MOVING_S
        while time.monotonic() < deadline:
            remaining = [number for number in self.numbers(files, source) if number not in stuck]
            if not remaining:
                break
            if remaining == previous:
                time.sleep(0.001)
            previous = remaining
            for number in remaining:
                if not self.put(files, goal, number):
                    stuck.add(number)
        return sorted(stuck)

    def put(self, files: FileTree, group: str, number: int) -> bool:
        """Move one task into a group; False if the kernel does not allow it."""
        try:
            files.write(f"{group}/{self.members}", str(number))
        except WriteRefused as error:
            if error.code == errno.ESRCH:  # it exited meanwhile
                return True
            if error.code == errno.EINVAL:
                return False
            raise
        return True

    def remove(self, files: FileTree, group: str) -> None:
        """Remove a group that has no members and no subgroups."""
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


def group_mounts(files: FileTree) -> dict[str, str]:
    """Return controller of version 1, or `cgroup2` -> mount point."""
    mounts: dict[str, str] = {}
    for line in files.read("proc/mounts").text.splitlines():
        match line.split():
            case [_, place, "cgroup2", *_]:
                mounts.setdefault("cgroup2", unescaped(place).strip("/"))
            case [_, place, "cgroup", options, *_]:
                for option in options.split(","):
                    mounts.setdefault(option, unescaped(place).strip("/"))
    return mounts


def find_cpusets(files: FileTree) -> Cpusets:
    """Return the hierarchy with the cpuset controller; raises MissingTool if there is none."""
    mounts = group_mounts(files)
    if "cpuset" in mounts:
        return Cpusets(version=1, top=mounts["cpuset"])
    version_2 = mounts.get("cgroup2")
    if version_2 is None:
        because = files.read("proc/mounts").because
        raise MissingTool(because or "no control groups are mounted here")
    controllers = files.read(f"{version_2}/cgroup.controllers")
    if "cpuset" not in (controllers.value or "").split():
        raise MissingTool(f"the control groups at /{version_2} have no cpuset controller")
    return Cpusets(version=2, top=version_2)


def folders_below(files: FileTree, folder: str) -> list[str]:
    """Return all folders below, innermost first."""
    folders: list[str] = []
    for name in files.names(folder):
        path = f"{folder}/{name}"
        if files.path(path).is_dir():
            folders += [*folders_below(files, path), path]
    return folders


GROUP: Final = "torchyard"
MEASURE: Final = "measure"
HOUSEKEEPING: Final = "house"

_TRY_PARENT: Final = (errno.EBUSY, errno.ENOSPC, errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP)
"""Errors of groups that are gone, or that may not have members of their own."""


def origin_of(ours: str, group: str) -> str:
    """Return the group from which the tasks of a group came; itself if it is not ours."""
    for part in (MEASURE, HOUSEKEEPING):
        prefix = f"{ours}/{part}"
        if group == prefix or group.startswith(f"{prefix}/"):
            return f"{ours.rpartition('/')[0]}{group.removeprefix(prefix)}"
    return group


def make_mirror(files: FileTree, cpusets: Cpusets, *, ours: str, part: str, origin: str) -> str:
    """Return the group in `part` that mirrors `origin`, creating it if necessary."""
    base = ours.rpartition("/")[0]
    if origin != base and not origin.startswith(f"{base}/"):
        raise NotAllowed(
            f"/{origin} is not a group below /{base}", why="its tasks could not be moved back"
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
    """Return the group that a task enters to measure; raises if no cores are isolated."""
    if not files.exists(f"{ours}/{MEASURE}"):
        raise MissingTool(f"no cores are isolated: there is no group /{ours}/{MEASURE}")
    group = cpusets.group_of(files, number)
    if group is None:
        raise MissingTool(f"there is no process {number}")
    origin = origin_of(ours, group)
    return make_mirror(files, cpusets, ours=ours, part=MEASURE, origin=origin)


def remove_groups(files: FileTree, cpusets: Cpusets, ours: str) -> None:
    """Move every task back and remove our groups. Does nothing if there are none."""
    if not files.exists(ours):
        return
    base = ours.rpartition("/")[0]
    for group in [*folders_below(files, ours), ours]:
        origin = origin_of(ours, group)
        if origin.startswith(ours):  # not one that we created
            origin = base
        while cpusets.numbers(files, group):
            try:
                cpusets.move(files, group, origin)
                break
            except WriteRefused as error:
                # The original group was removed meanwhile: use its parent.
                if error.code not in _TRY_PARENT or origin == base:
                    raise
                origin = origin.rpartition("/")[0]
        cpusets.remove(files, group)


def _common(files: FileTree, origin: str, parent: str, file: str) -> str:
    """Return what origin and parent have in common, or all of the parent's if nothing."""
    own, available = (
        cpus_of_list(files.read(f"{group}/{file}").text) for group in (origin, parent)
    )
    return cpu_list(tuple(one for one in own if one in available) or available)
