"""What the machine is by its nature or since it was started: guests, boot line, clock source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchyard.core.machine import Advice
from torchyard.errors import UsageError
from torchyard.machine.activity import Activity
from torchyard.machine.core_choice import choose_cores
from torchyard.machine.facts import frequency, isolation, kernel, memory
from torchyard.machine.facts.boot_words import boot_values
from torchyard.machine.facts.reading import or_none
from torchyard.machine.file_tree import FileTree
from torchyard.machine.knob import Machine

__all__ = ["advise"]

_SLOW_CLOCKS: Final = frozenset({"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies", "xen"})
"""Sources that a program cannot read without asking the kernel."""


def advise(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """What stays as it is until the machine, or its place, is another."""
    yield from _guest(machine.files)
    yield from _cores(machine.files)
    yield from _tickless_clock(machine.files)
    yield from _clock_source(machine.files)
    yield from _one_layout(machine.files)


def _guest(files: FileTree) -> Iterator[Advice]:
    who = kernel.virtualisation(files).value or ""
    if who.startswith("guest of"):
        yield Advice(
            name="guest",
            effect="medium",
            what=f"this machine is a {who}",
            why="neighbours on the host share caches, memory bandwidth and the clock, and nothing "
            "here shows them; across clouds a benchmark's spread was published as 0.03 % to over "
            "100 %, on rented runners of one vendor as 2.7 %, on its own machines as 0.6 %",
            mend="compare in one run, in pairs of random order, as `torchyard bench` does; "
            "numbers of different days or instances do not compare",
        )


def _cores(files: FileTree) -> Iterator[Advice]:
    if isolation.apart(files):
        return
    try:
        choose_cores(files, "auto")
    except (UsageError, IndexError):  # one core, or no topology at all
        return
    yield Advice(
        name="cores",
        effect="medium",
        what="no core is set apart for measuring",
        why="the kernel and other programs run on every core; published for a microbenchmark of "
        "36.6 ns: the standard deviation fell from 1.3 to 0.1 ns, the median stayed",
        mend="sudo torchyard machine tune --cores auto -- COMMAND",
        needs_root=True,
    )
    if "isolcpus" not in boot_values(files):
        yield Advice(
            name="cores-at-boot",
            effect="small",
            what="the boot line sets no cores apart",
            why="it keeps timer ticks and callbacks of the kernel away as well, which cannot be "
            "done later; for machines that do nothing but measure",
            mend="torchyard machine boot --cores auto",
            needs_root=True,
            needs_reboot=True,
        )


def _tickless_clock(files: FileTree) -> Iterator[Advice]:
    tickless = or_none(files.read("sys/devices/system/cpu/nohz_full"))
    if tickless and frequency.driver(files).value == "intel_pstate":
        yield Advice(
            name="tickless-clock",
            effect="large",
            what="processors without timer ticks, and a clock that intel_pstate sets",
            why="the driver's own governor needs the tick to see load, so these processors may "
            "stay at a low clock (Red Hat bug 1378529)",
            mend="sudo torchyard machine tune --only governor, or intel_pstate=passive",
            needs_root=True,
        )


def _clock_source(files: FileTree) -> Iterator[Advice]:
    source = kernel.clock_source(files).value
    if source in _SLOW_CLOCKS:
        yield Advice(
            name="clock-source",
            effect="small",
            what=f"clocks are read from {source}",
            why="each look at the clock is a call into the kernel, which short measurements feel",
            mend="look in the kernel's log why it gave up the processor's own counter; "
            "clocksource=tsc tsc=reliable keeps it",
            needs_reboot=True,
        )


def _one_layout(files: FileTree) -> Iterator[Advice]:
    if memory.randomisation(files).value == "0":
        yield Advice(
            name="one-layout",
            effect="medium",
            what="address randomisation is off",
            why="processes agree better (standard deviation between launches 1.2 instead of 3.2 %, "
            "measured), but all share one memory layout, whose luck then counts as a difference "
            "between two builds",
            mend="sudo torchyard machine tune --aslr on",
            needs_root=True,
        )
