"""Read cpufreq policies, base clocks and cpuidle states (C-states) of the CPUs.

A policy is a group of CPUs that share one clock, with one directory of files. The base clock is the
one that a CPU sustains under any load, and at which benchmarks are fixed; where the kernel does not
publish it, the number is marked as a guess. `ProcessorKnob` lets knobs of such files skip CPUs that
are offline.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from torchyard.machine.knob import FileKnob, Machine, SkippedWrite
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.system.file_tree import CPU, FileTree

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
