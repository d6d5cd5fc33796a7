"""Choose the cores for measuring and the housekeeping cores, and share cores out among instances.

Reads only files. Invalid `--cores` are reported by `choose_cores`; `split_cores` returns a
reason instead of raising, because an unavailable knob must not stop the others.

Cores have states: cpufreq policies (CPUs that share one clock, with one directory of files), base clocks
and cpuidle states (C-states). The base clock is the one that a CPU sustains under any load, and at which
benchmarks are fixed; where the kernel does not publish it, the number is marked as a guess.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list, split_cpus
from torchyard.core.study import Environment
from torchyard.errors import UsageError
from torchyard.machine.knob import FileKnob, Machine, SkippedWrite
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.system.file_tree import CPU, FileTree
from torchyard.process.timing_turn import RESERVED_VARIABLE


@dataclass(frozen=True, kw_only=True)
class CoreChoice:
    """CPUs for measuring."""

    cores: tuple[int, ...]
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
    return CoreChoice(cores=cores, notes=tuple(notes))


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


CPUFREQ: Final = f"{CPU}/cpufreq"
NO_POLICY: Final = (
    f"/{CPUFREQ} has no policy: firmware or a hypervisor controls the clocks, not this kernel"
)


def policies(files: FileTree) -> list[str]:
    """Return the folders of the policies that have an online CPU.

    The folder of a policy stays when its last CPU goes offline, but none of its files can be
    read then (EBUSY). Kernels before 4.2 removed it.
    """
    return [path for path in files.paths(f"{CPUFREQ}/policy[0-9]*") if _has_processor(files, path)]


def skip_offline(files: FileTree, place: str) -> None:
    """Raise `SkippedWrite` for a location of offline CPUs.

    All CPUs were surveyed before the first write; SMT may have been disabled in between.
    """
    policy = re.match(rf"{CPUFREQ}/policy\d+", place)
    if policy is not None and not _has_processor(files, policy[0]):
        raise SkippedWrite(f"no CPU of /{policy[0]} is online")
    cpu = re.match(rf"{CPU}/cpu\d+", place)
    # The first CPU of most machines cannot go offline and has no such file.
    if cpu is not None and files.read(f"{cpu[0]}/online").value == "0":
        raise SkippedWrite(f"/{cpu[0]} is offline")


class ProcessorKnob(FileKnob):
    """A knob of files that belong to policies or to single CPUs."""

    def write(self, machine: Machine, setting: Setting) -> None:
        """Write the requested value unless the CPU is offline."""
        skip_offline(machine.files, setting.place)
        super().write(machine, setting)


def _has_processor(files: FileTree, policy: str) -> bool:
    return bool(files.read(f"{policy}/affected_cpus").value)


_TURBO_STEP_KHZ: Final = 1000
"""acpi-cpufreq on Intel: turbo is a separate step, 1 MHz above the base clock."""


@dataclass(frozen=True, kw_only=True)
class BaseClock:
    """A base clock."""

    khz: int
    guessed: bool = False
    """Whether it may be a clock that heat or power limits reduce."""


def base_clock(files: FileTree, policy: str) -> BaseClock | None:
    """Return the base clock of a policy; None if no clock can be read."""
    # intel_pstate with hardware-managed clocks has the file `base_frequency`.
    khz = (
        files.read(f"{policy}/base_frequency").number
        or _of_firmware(files, policy)
        or _of_name(files)
        or _of_table(files, policy)
    )
    if khz:
        return BaseClock(khz=khz)
    highest = files.read(f"{policy}/cpuinfo_max_freq").number
    return BaseClock(khz=highest, guessed=True) if highest else None


def reachable_khz(files: FileTree, policy: str, khz: int) -> int:
    """Return the supported clock for a request: within the limits, rounded down to a table step.

    Kernels round a limit between two steps themselves, which would look like a refusal.
    """
    lowest = files.read(f"{policy}/cpuinfo_min_freq").number
    highest = files.read(f"{policy}/cpuinfo_max_freq").number
    khz = khz if highest is None else min(khz, highest)
    khz = khz if lowest is None else max(khz, lowest)
    table = _table(files, policy)
    return max((step for step in table if step <= khz), default=min(table, default=khz))


def _of_firmware(files: FileTree, policy: str) -> int | None:
    """Read it from ACPI CPPC (AMD and Arm servers): in MHz, 0 if the firmware omits it."""
    first = files.read(f"{policy}/affected_cpus").text.split()[:1]
    mhz = files.read(f"{CPU}/cpu{first[0]}/acpi_cppc/nominal_freq").number if first else None
    return mhz * 1000 if mhz else None


def _of_name(files: FileTree) -> int | None:
    """Read it from the model name: `... CPU @ 2.50GHz`, Intel until about 2022."""
    text = files.read("proc/cpuinfo").text
    match = re.search(r"^model name\s*:.* @ (\d+\.\d+)GHz", text, re.MULTILINE)
    return round(float(match[1]) * 1_000_000) if match else None


def _of_table(files: FileTree, policy: str) -> int | None:
    """Read the highest step without boost: drivers list boost steps in another file."""
    table = _table(files, policy)
    if len(table) > 1 and table[0] - table[1] == _TURBO_STEP_KHZ:
        return table[1]
    return table[0] if table else None


def _table(files: FileTree, policy: str) -> list[int]:
    """Return the clock steps, highest first; empty for drivers without steps."""
    words = files.read(f"{policy}/scaling_available_frequencies").text.split()
    return sorted((int(word) for word in words if word.isdigit()), reverse=True)


@dataclass(frozen=True, kw_only=True)
class IdleState:
    """One idle state of one CPU."""

    folder: str
    name: str
    latency_us: int

    @property
    def polls(self) -> bool:
        """Whether the CPU spins instead of sleeping."""
        return self.name == "POLL"


def idle_states(files: FileTree) -> tuple[IdleState, ...]:
    """Return the idle states of every CPU; empty without an idle driver."""
    states: list[IdleState] = []
    for path in files.paths(f"{CPU}/cpu[0-9]*/cpuidle/state[0-9]*"):
        latency_us = files.read(f"{path}/latency").number
        if latency_us is not None:
            name = files.read(f"{path}/name").text
            states.append(IdleState(folder=path, name=name, latency_us=latency_us))
    return tuple(states)


def allowed_latency_us(states: tuple[IdleState, ...], request: QuietRequest) -> int:
    """Return the requested latency, but at least that of the lightest sleep state; 0 stays 0.

    The lightest sleep state (C1) takes 1 us on AMD and 2 us on many Intel servers. A limit of 1 us
    there would mean polling, which produces heat and slows the other thread of an SMT core.
    """
    if request.latency_us == 0:
        return 0
    lightest: dict[str, int] = {}
    for state in states:
        if not state.polls:
            processor = state.folder.rsplit("/cpuidle/", 1)[0]
            lightest[processor] = min(state.latency_us, lightest.get(processor, state.latency_us))
    return max(request.latency_us, *lightest.values(), 0)
