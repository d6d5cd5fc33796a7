"""The clock that a processor can keep up under any load: what benchmarks are fixed at.

Reads what the kernel publishes, and says where a number is a guess. Writes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from torchyard.machine.clock_policy import CPU
from torchyard.machine.file_tree import FileTree

__all__ = ["BaseClock", "base_clock", "reachable_khz"]

_TURBO_STEP_KHZ: Final = 1000
"""acpi-cpufreq on Intel: turbo is a step of its own, 1 MHz above the base clock."""


@dataclass(frozen=True, kw_only=True)
class BaseClock:
    """A clock and where it is known from."""

    khz: int
    source: str
    guessed: bool = False
    """Whether it may be a clock that heat or power take away again."""


def base_clock(files: FileTree, policy: str) -> BaseClock | None:
    """The base clock of one policy; None when no clock at all can be read."""
    return (
        _of_driver(files, policy)
        or _of_firmware(files, policy)
        or _of_name(files)
        or _of_table(files, policy)
        or _highest(files, policy)
    )


def reachable_khz(files: FileTree, policy: str, khz: int) -> int:
    """The nearest clock that the hardware has: inside its limits, and not above a step of its table.

    Kernels round a limit between two steps themselves, which would look as if it were refused.
    """
    lowest = files.read(f"{policy}/cpuinfo_min_freq").number
    highest = files.read(f"{policy}/cpuinfo_max_freq").number
    khz = khz if highest is None else min(khz, highest)
    khz = khz if lowest is None else max(khz, lowest)
    table = _table(files, policy)
    return max((step for step in table if step <= khz), default=min(table, default=khz))


def _of_driver(files: FileTree, policy: str) -> BaseClock | None:
    """intel_pstate with hardware-managed clocks."""
    khz = files.read(f"{policy}/base_frequency").number
    return BaseClock(khz=khz, source=f"/{policy}/base_frequency") if khz else None


def _of_firmware(files: FileTree, policy: str) -> BaseClock | None:
    """ACPI CPPC: AMD and Arm servers. In MHz, and 0 where the firmware leaves it out."""
    first = (files.read(f"{policy}/affected_cpus").value or "").split()[:1]
    path = f"{CPU}/cpu{first[0]}/acpi_cppc/nominal_freq" if first else ""
    mhz = files.read(path).number if path else None
    return BaseClock(khz=mhz * 1000, source=f"/{path}") if mhz else None


def _of_name(files: FileTree) -> BaseClock | None:
    """`... CPU @ 2.50GHz`: Intel's names until about 2022. No Arm or AMD server has one."""
    text = files.read("proc/cpuinfo").value or ""
    match = re.search(r"^model name\s*:.* @ (\d+\.\d+)GHz", text, re.MULTILINE)
    if match is None:
        return None
    return BaseClock(khz=round(float(match[1]) * 1_000_000), source="the processor's name")


def _of_table(files: FileTree, policy: str) -> BaseClock | None:
    """The highest step that is no boost: drivers list those in another file."""
    table = _table(files, policy)
    if not table:
        return None
    khz = table[0]
    if len(table) > 1 and table[0] - table[1] == _TURBO_STEP_KHZ:
        khz = table[1]
    return BaseClock(khz=khz, source=f"/{policy}/scaling_available_frequencies")


def _highest(files: FileTree, policy: str) -> BaseClock | None:
    khz = files.read(f"{policy}/cpuinfo_max_freq").number
    if not khz:
        return None
    return BaseClock(khz=khz, source=f"/{policy}/cpuinfo_max_freq", guessed=True)


def _table(files: FileTree, policy: str) -> list[int]:
    """Steps, highest first; empty for drivers without steps."""
    words = (files.read(f"{policy}/scaling_available_frequencies").value or "").split()
    return sorted((int(word) for word in words if word.isdigit()), reverse=True)
