"""Choose the cores for measuring and the housekeeping cores, and share cores out among instances.

Reads only the topology. Invalid `--cores` are reported by `choose_cores`; `split_cores` returns a
reason instead of raising, because an unavailable knob must not stop the others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list, split_cpus
from torchyard.core.study import Environment
from torchyard.errors import UsageError
from torchyard.machine.model import QuietRequest
from torchyard.machine.system.file_tree import CPU, FileTree
from torchyard.process.timing_turn import RESERVED_VARIABLE


@dataclass(frozen=True, kw_only=True)
class CoreChoice:
    """CPUs for measuring, and the housekeeping CPUs."""

    cores: tuple[int, ...]
    housekeeping: tuple[int, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Online CPUs, by physical core and by NUMA node."""

    online: tuple[int, ...]
    physical: tuple[tuple[int, ...], ...]
    """CPUs of each physical core, the first SMT thread first."""
    nodes: tuple[tuple[int, ...], ...]

    @classmethod
    def read(cls, files: FileTree) -> Topology:
        """Read sysfs; without a topology there is one node and one thread per core."""
        online = files.read(f"{CPU}/online").cpus or tuple(
            int(path.rpartition("cpu")[2]) for path in files.paths(f"{CPU}/cpu[0-9]*")
        )
        physical: dict[int, tuple[int, ...]] = {}
        for cpu in online:
            threads = files.read(f"{CPU}/cpu{cpu}/topology/thread_siblings_list").cpus or (cpu,)
            online_threads = tuple(thread for thread in threads if thread in online)
            physical.setdefault(min(online_threads, default=cpu), online_threads or (cpu,))
        lists = files.paths("sys/devices/system/node/node[0-9]*/cpulist")
        nodes = [
            tuple(cpu for cpu in files.read(path).cpus if cpu in online) for path in lists
        ]  # a node may have only memory
        return cls(
            online=online,
            physical=tuple(physical.values()),
            nodes=tuple(node for node in nodes if node) or (online,),
        )

    def siblings(self, cpu: int) -> tuple[int, ...]:
        """Return the CPUs of the same physical core, itself included."""
        return next((core for core in self.physical if cpu in core), (cpu,))

    def without_siblings(self) -> Topology:
        """Return the topology with SMT off."""
        first = tuple(core[0] for core in self.physical)
        nodes = (tuple(cpu for cpu in node if cpu in first) for node in self.nodes)
        return Topology(
            online=first, physical=tuple((cpu,) for cpu in first), nodes=tuple(filter(None, nodes))
        )


def choose_cores(files: FileTree, text: str, *, smt_off: bool = False) -> CoreChoice:
    """Return the cores of `--cores LIST` or `--cores auto`.

    `smt_off`: quieting takes SMT siblings offline, so they are used neither for measuring nor for
    housekeeping. `auto` takes all cores of one NUMA node, the largest without the physical core of
    CPU 0, where the kernel does its own work.
    """
    full_topology = Topology.read(files)
    topology = full_topology.without_siblings() if smt_off else full_topology
    if text.strip() == "auto":
        return _checked(topology, _automatic(topology))
    cores = parse_cores(text)
    missing = tuple(cpu for cpu in cores if cpu not in topology.online)
    if missing:
        are_siblings = all(cpu in full_topology.online for cpu in missing)
        raise UsageError(
            f"--cores: CPU {cpu_list(missing)} is not available",
            why="SMT siblings go offline"
            if are_siblings
            else f"CPUs {cpu_list(topology.online)} are online",
            hint="use other CPUs, or add `--without smt`" if are_siblings else "use online CPUs",
        )
    return _checked(topology, cores)


def parse_cores(text: str) -> tuple[int, ...]:
    """Return the CPUs of `--cores LIST`, whether they exist or not."""
    try:
        cores = cpus_of_list(text)
    except ValueError:
        cores = ()
    if not cores:
        raise UsageError(
            f"--cores: invalid CPU list {text!r}", hint="use a list such as 2-7 or 2,3,6, or auto"
        )
    return cores


def _automatic(topology: Topology) -> tuple[int, ...]:
    first = topology.siblings(topology.online[0])
    candidates = [tuple(cpu for cpu in node if cpu not in first) for node in topology.nodes]
    cores = max(reversed(candidates), key=len)
    if not cores:
        raise UsageError(
            "--cores auto: there is no core to isolate",
            why="this machine has one physical core, which is needed for housekeeping",
            hint="remove --cores",
        )
    return cores


def _checked(topology: Topology, cores: tuple[int, ...]) -> CoreChoice:
    housekeeping = tuple(cpu for cpu in topology.online if cpu not in cores)
    if not housekeeping:
        raise UsageError(
            "--cores leaves no core for housekeeping",
            why="the kernel and all other programs need one",
            hint=f"remove CPU {topology.online[0]}, or use `--cores auto`",
        )
    notes: list[str] = []
    shared = tuple(cpu for cpu in housekeeping if set(topology.siblings(cpu)) & set(cores))
    if shared:
        notes.append(
            f"housekeeping CPUs {cpu_list(shared)} share physical cores with isolated ones: add "
            "them to --cores, or disable SMT"
        )
    if topology.online[0] in cores:
        notes.append(f"CPU {topology.online[0]} does kernel work that cannot be moved")
    if sum(bool(set(node) & set(cores)) for node in topology.nodes) > 1:
        notes.append("the cores are on several NUMA nodes: some memory accesses are remote")
    return CoreChoice(cores=cores, housekeeping=housekeeping, notes=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class CoreSplit:
    """CPUs for measuring and for housekeeping, or why there are none."""

    measuring: tuple[int, ...] = ()
    housekeeping: tuple[int, ...] = ()
    because: str = ""
    """Empty if and only if both sets have CPUs."""


def split_cores(files: FileTree, request: QuietRequest) -> CoreSplit:
    """Return the requested cores, and all other online CPUs."""
    measuring = tuple(sorted(set(request.cores)))
    if not measuring:
        return CoreSplit(because="no cores are isolated (see --cores)")
    online = Topology.read(files).online
    absent = tuple(cpu for cpu in measuring if cpu not in online)
    if absent:
        return CoreSplit(
            because=f"CPUs {cpu_list(absent)} are not online (online: {cpu_list(online)})"
        )
    housekeeping = tuple(cpu for cpu in online if cpu not in measuring)
    if not housekeeping:
        return CoreSplit(because=f"cores {cpu_list(measuring)} leave none for housekeeping")
    return CoreSplit(measuring=measuring, housekeeping=housekeeping)


MOST_PER_CORE: Final = 4
"""Maximum number of instances per core: more would measure the scheduler and full memory."""


def available_cores() -> int:
    """Return the number of CPUs this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def cores_of(environment: Environment, ranks: int = 1) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs of each instance or rank: contiguous, so that they share a NUMA node.

    In a sweep that reserves cores for timing, only these count.
    """
    cores = cpus_of_list(environment.cores or os.environ.get(RESERVED_VARIABLE, ""))
    return split_cpus(cores or tuple(os.sched_getaffinity(0)), environment.instances * ranks)


def check_instances(environment: Environment, ranks: int = 1) -> None:
    """Raise UsageError for more instances or ranks than `MOST_PER_CORE` allows."""
    cores = len({core for part in cores_of(environment) for core in part})
    most = MOST_PER_CORE * cores
    if ranks > most:
        raise UsageError(
            f"{ranks} ranks are too many for {cores} cores",
            why=f"the maximum is {MOST_PER_CORE} per core",
            hint=f"use at most {most} ranks, or spread them over nodes of a Slurm allocation with --nodes",
        )
    if environment.instances > most:
        raise UsageError(
            f"{environment.instances} instances are too many for {cores} cores",
            why=f"the maximum is {MOST_PER_CORE} per core",
            hint=f"set `instances` of the environment {environment.name!r} to {most} or less",
        )
