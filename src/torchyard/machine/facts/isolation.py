"""Which processors are set apart, and which ones this process may use: boot line, cpusets, limits."""

from __future__ import annotations

import os
from typing import Final

from torchyard.core.machine import Fact
from torchyard.core.processor_lists import cpu_list, cpus_of_list, cpus_of_mask
from torchyard.machine.facts.boot_words import boot_values, noise_words
from torchyard.machine.facts.reading import (
    Reader,
    facts_of,
    fields_of,
    in_words,
    line_of,
    or_none,
    processors,
)
from torchyard.machine.file_tree import FileTree, Found
from torchyard.machine.knob import Machine

__all__ = [
    "SECTION",
    "allowed",
    "apart",
    "group_version",
    "own_groups",
    "quota_processors",
    "read",
    "set_apart",
]

SECTION: Final = "isolation"
_CPU: Final = "sys/devices/system/cpu"
_STATUS: Final = "proc/self/status"
_NO_GROUP: Final = "this process is in no control group that is mounted"


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def allowed(files: FileTree) -> Found:
    """The processors that this process may use, as a list."""
    found = files.read(_STATUS)
    named = fields_of(found).get("Cpus_allowed_list")
    if named is None and files.live:  # some sandboxes leave the line out
        return Found(value=cpu_list(tuple(os.sched_getaffinity(0))))
    if named is None:
        return Found(because=found.because or f"/{_STATUS} has no Cpus_allowed_list")
    return in_words(Found(value=named), lambda text: cpu_list(cpus_of_list(text)))


def apart(files: FileTree) -> tuple[int, ...]:
    """Processors without load balancing: of the boot line, and of isolated partitions."""
    at_boot = or_none(files.read(f"{_CPU}/isolated"))
    root = _mounts(files).get("cgroup2")
    at_run_time = or_none(files.read(f"{root}/cpuset.cpus.isolated")) if root else ()
    return tuple(sorted({*at_boot, *at_run_time}))


def set_apart(files: FileTree) -> Found:
    """The same as a list, in words when there is none."""
    if files.read(f"{_CPU}/isolated").value is None:
        return files.read(f"{_CPU}/isolated")
    return Found(value=cpu_list(apart(files)) or "none")


def group_version(files: FileTree) -> Found:
    """Which control groups hold cpusets here."""
    mounts = _mounts(files)
    if "cpuset" in mounts:
        return Found(
            value="1" + (" (version 2 is mounted beside it)" if "cgroup2" in mounts else "")
        )
    if "cgroup2" in mounts:
        return Found(value="2")
    found = files.read("proc/mounts")
    return Found(because=found.because or "/proc/mounts has no control groups")


def own_groups(files: FileTree, controller: str) -> tuple[str, ...]:
    """Folders, below the root, of this process's group for a controller and of its parents."""
    mounts = _mounts(files)
    mount = mounts.get(controller if controller in mounts else "cgroup2")
    text = files.read("proc/self/cgroup").value or ""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        own = controller in names.split(",") if controller in mounts else not names
        if own and mount is not None:
            steps = [step for step in path.split("/") if step]
            groups = ["/".join((mount, *steps[:count])) for count in range(len(steps), -1, -1)]
            # A container sees the path that its group has outside, and its own group as the root.
            return tuple(groups) if files.exists(groups[0]) else (mount,)
    return ()


def quota_processors(files: FileTree) -> Found:
    """How many processors the groups of this process may use, as a number; `all` without limit."""
    groups = own_groups(files, "cpu")
    if not groups:
        return Found(because=_NO_GROUP)
    shares: list[float] = []
    for group in groups:  # the limit of every parent holds, too
        found = files.read(f"{group}/cpu.max")
        quota, _, period = (found.value or "").partition(" ")
        if found.value is None:
            quota = files.read(f"{group}/cpu.cfs_quota_us").value or ""
            period = files.read(f"{group}/cpu.cfs_period_us").value or ""
        if quota.isdecimal() and period.strip().isdecimal() and int(period):
            shares.append(int(quota) / int(period))
    return Found(value=f"{min(shares):g}" if shares else "all")


def _mounts(files: FileTree) -> dict[str, str]:
    """Controller of version 1, or `cgroup2` -> mount point below the root."""
    found: dict[str, str] = {}
    for line in (files.read("proc/mounts").value or "").splitlines():
        match line.split():
            case [_, place, "cgroup2", *_]:
                found.setdefault("cgroup2", place.strip("/"))
            case [_, place, "cgroup", options, *_]:
                for option in options.split(","):
                    found.setdefault(option, place.strip("/"))
    return found


def _group(files: FileTree) -> Found:
    groups = own_groups(files, "cpuset")
    return Found(value=f"/{groups[0]}") if groups else Found(because=_NO_GROUP)


def _of_group(*names: str, nothing: str) -> Reader:
    """The first of some files that the group of this process has."""

    def read_file(files: FileTree) -> Found:
        groups = own_groups(files, "cpuset")
        if not groups:
            return Found(because=_NO_GROUP)
        for name in names:
            found = files.read(f"{groups[0]}/{name}")
            if found.value is not None:
                return Found(value=found.value.strip() or nothing)
        return Found(because=f"/{groups[0]} has no {names[0]}: it is the root, or has no cpuset")

    return read_file


def _rcu(files: FileTree) -> Found:
    if files.read("proc/cmdline").value is None:
        return files.read("proc/cmdline")
    values = boot_values(files)
    if "rcu_nocbs" not in values:
        return Found(value="none")
    return Found(value=values["rcu_nocbs"] or "all")


def _workqueues(files: FileTree) -> Found:
    path = "sys/devices/virtual/workqueue/cpumask"
    return in_words(line_of(files, path), lambda text: cpu_list(cpus_of_mask(text)))


def _partitions(files: FileTree) -> Found:
    root = _mounts(files).get("cgroup2")
    if root is None:
        return Found(because="control groups of version 2 are not mounted")
    return processors(f"{root}/cpuset.cpus.isolated")(files)


READERS: Final[dict[str, Reader]] = {
    "set apart at boot": processors(f"{_CPU}/isolated"),
    "without timer ticks": processors(f"{_CPU}/nohz_full"),
    "without RCU callbacks": _rcu,
    "set apart at run time": _partitions,
    "the boot line says": noise_words,
    "this process may use": allowed,
    "cpusets of version": group_version,
    "group of this process": _group,
    "cpuset of this process": _of_group(
        "cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", nothing="none"
    ),
    "partition of this process": _of_group("cpuset.cpus.partition", nothing="none"),
    "processors that limits leave": quota_processors,
    "unbound workqueues": _workqueues,
}
