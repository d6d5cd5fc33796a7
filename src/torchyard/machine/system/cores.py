"""Choose the cores for measuring and the housekeeping cores, and share cores out among instances.

Reads the topology only and knows nothing of how cores are isolated. Invalid `--cores` are reported
by `choose_cores`; `house_cores` returns a reason instead of raising, because a knob that cannot be
applied says so while the others go on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list, share_out
from torchyard.core.study import Environment
from torchyard.errors import UsageError
from torchyard.machine.model import Wish
from torchyard.machine.system.file_tree import FileTree

_CPU = "sys/devices/system/cpu"


@dataclass(frozen=True, kw_only=True)
class CoreChoice:
    """Logical processors for measuring, and the rest."""

    cores: tuple[int, ...]
    house: tuple[int, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Logical processors that are online, by physical core and by node of memory."""

    online: tuple[int, ...]
    physical: tuple[tuple[int, ...], ...]
    """The threads of each physical core, the first one first."""
    nodes: tuple[tuple[int, ...], ...]

    @classmethod
    def read(cls, files: FileTree) -> Topology:
        """From sysfs; a machine that does not say has one node and one thread per core."""
        online = _cpus(files, f"{_CPU}/online") or tuple(
            int(path.rpartition("cpu")[2]) for path in files.paths(f"{_CPU}/cpu[0-9]*")
        )
        physical: dict[int, tuple[int, ...]] = {}
        for cpu in online:
            threads = _cpus(files, f"{_CPU}/cpu{cpu}/topology/thread_siblings_list") or (cpu,)
            living = tuple(thread for thread in threads if thread in online)
            physical.setdefault(min(living, default=cpu), living or (cpu,))
        lists = files.paths("sys/devices/system/node/node[0-9]*/cpulist")
        nodes = [
            tuple(cpu for cpu in _cpus(files, path) if cpu in online) for path in lists
        ]  # a node may have memory only
        return cls(
            online=online,
            physical=tuple(physical.values()),
            nodes=tuple(node for node in nodes if node) or (online,),
        )

    def siblings(self, cpu: int) -> tuple[int, ...]:
        """The threads that share its physical core, itself among them."""
        return next((core for core in self.physical if cpu in core), (cpu,))

    def without_siblings(self) -> Topology:
        """As it is when every core has one thread."""
        first = tuple(core[0] for core in self.physical)
        nodes = (tuple(cpu for cpu in node if cpu in first) for node in self.nodes)
        return Topology(
            online=first, physical=tuple((cpu,) for cpu in first), nodes=tuple(filter(None, nodes))
        )


def choose_cores(files: FileTree, text: str, *, smt_off: bool = False) -> CoreChoice:
    """The cores of `--cores LIST` or `--cores auto`.

    `smt_off`: the tune takes second threads offline, so they can be neither measured on nor used
    by the house. `auto` takes every core of one node of memory, but never the physical core of
    processor 0, where the kernel does its own work: of the node that has most left.
    """
    found = Topology.read(files)
    topology = found.without_siblings() if smt_off else found
    if text.strip() == "auto":
        return _checked(topology, _automatic(topology))
    try:
        cores = cpus_of_list(text)
    except ValueError:
        cores = ()
    if not cores:
        raise UsageError(
            f"--cores: {text!r} is no list of processors", hint="write 2-7, 2,3,6 or auto"
        )
    missing = tuple(cpu for cpu in cores if cpu not in topology.online)
    if missing:
        second = all(cpu in found.online for cpu in missing)
        raise UsageError(
            f"--cores: there is no processor {cpu_list(missing)}",
            why="second threads of cores go offline with this tune"
            if second
            else f"processors {cpu_list(topology.online)} are online",
            hint="name others, or add `--without smt`" if second else "name others",
        )
    return _checked(topology, cores)


def _automatic(topology: Topology) -> tuple[int, ...]:
    first = topology.siblings(topology.online[0])
    left = [tuple(cpu for cpu in node if cpu not in first) for node in topology.nodes]
    cores = max(reversed(left), key=len)
    if not cores:
        raise UsageError(
            "--cores auto: there is no core to set apart",
            why="this machine has one physical core, and the house needs it",
            hint="leave --cores out",
        )
    return cores


def _checked(topology: Topology, cores: tuple[int, ...]) -> CoreChoice:
    house = tuple(cpu for cpu in topology.online if cpu not in cores)
    if not house:
        raise UsageError(
            "--cores leaves no core to the house",
            why="the kernel and every other program need one",
            hint=f"leave out {topology.online[0]}, or say `--cores auto`",
        )
    notes: list[str] = []
    shared = tuple(cpu for cpu in house if set(topology.siblings(cpu)) & set(cores))
    if shared:
        notes.append(
            f"processors {cpu_list(shared)} stay with the house and share physical cores with "
            "those set apart: add them to --cores, or switch SMT off"
        )
    if topology.online[0] in cores:
        notes.append(
            f"processor {topology.online[0]} does work of the kernel that cannot be moved away"
        )
    if sum(bool(set(node) & set(cores)) for node in topology.nodes) > 1:
        notes.append("the cores are on several nodes of memory: some memory will be far away")
    return CoreChoice(cores=cores, house=house, notes=tuple(notes))


def _cpus(files: FileTree, path: str) -> tuple[int, ...]:
    found = files.read(path)
    try:
        return cpus_of_list(found.value or "")
    except ValueError:
        return ()


@dataclass(frozen=True, kw_only=True)
class HouseCores:
    """Both sets, or why there are none."""

    measuring: tuple[int, ...] = ()
    house: tuple[int, ...] = ()
    because: str = ""
    """Empty exactly when both sets have processors."""


def house_cores(files: FileTree, request: Wish) -> HouseCores:
    """The cores of the wish, and all other processors that are online."""
    measuring = tuple(sorted(set(request.cores)))
    if not measuring:
        return HouseCores(because="no cores are set apart (see --cores)")
    online = Topology.read(files).online
    absent = tuple(cpu for cpu in measuring if cpu not in online)
    if absent:
        return HouseCores(
            because=f"processors {cpu_list(absent)} are not online (online: {cpu_list(online)})"
        )
    house = tuple(cpu for cpu in online if cpu not in measuring)
    if not house:
        return HouseCores(because=f"cores {cpu_list(measuring)} leave none to the house")
    return HouseCores(measuring=measuring, house=house)


MOST_PER_CORE: Final = 4
"""Instances that a core may have: more tell of the scheduler alone, and of the memory when it is full."""


def available_cores() -> int:
    """Cores this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def cores_of(environment: Environment) -> tuple[tuple[int, ...], ...]:
    """The cores of each instance: neighbours, since those of a NUMA node are."""
    ours = cpus_of_list(environment.cores) if environment.cores else ()
    return share_out(ours or tuple(os.sched_getaffinity(0)), environment.instances)


def check_instances(environment: Environment) -> None:
    """Raise UsageError for more processes than these cores could ever run."""
    cores = len({core for part in cores_of(environment) for core in part})
    most = MOST_PER_CORE * cores
    if environment.instances > most:
        raise UsageError(
            f"{environment.instances} instances are too many for {cores} cores",
            why=f"at most {MOST_PER_CORE} for each core are started",
            hint=f"set `instances` of the environment {environment.name!r} to {most} or less",
        )
