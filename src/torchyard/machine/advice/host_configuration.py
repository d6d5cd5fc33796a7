"""Advise on the configuration: process limits, settings, kernel and virtualization.

Which settings quieting would change, and why, is asked of the knobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from torchyard.core.cpu_lists import cpu_list
from torchyard.errors import UsageError
from torchyard.machine.advice.activity import Activity
from torchyard.machine.facts import clocks as frequency
from torchyard.machine.facts import isolation, memory, software
from torchyard.machine.facts.isolation import boot_values
from torchyard.machine.facts.reading import or_none
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import Advice, Setting, Wish
from torchyard.machine.system.cores import choose_cores
from torchyard.machine.system.cpu_states import idle_states
from torchyard.machine.system.file_tree import FileTree

LITTLE_MEMORY: Final = 0.05
"""Part of all memory; the kernel begins to look for pages to take back around there."""


def advise_limits(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """What the limits of this process do to a measurement."""
    yield from _quota(machine)
    yield from _unbalanced(machine)
    yield from _little_memory(machine)


def _quota(machine: Machine) -> Iterator[Advice]:
    allowed = len(or_none(isolation.allowed(machine.files)))
    try:
        quota = float(isolation.quota_processors(machine.files).value or "inf")
    except ValueError:  # `all`
        return
    if quota < allowed:
        yield Advice(
            name="quota",
            effect="large",
            what=f"this process may run on {allowed} processors and may use the time of {quota:g}",
            why="with more threads than that the kernel stops all of them until the next period, "
            "usually a tenth of a second",
            mend=f"OMP_NUM_THREADS={max(1, int(quota))}, or give the container whole processors "
            "(docker run --cpuset-cpus)",
        )


def _unbalanced(machine: Machine) -> Iterator[Advice]:
    """Processors of isolcpus: the kernel never moves a thread from one to another."""
    apart = set(isolation.apart(machine.files))
    own = tuple(cpu for cpu in or_none(isolation.allowed(machine.files)) if cpu in apart)
    if len(own) > 1:
        yield Advice(
            name="unbalanced",
            effect="large",
            what=f"this process may use {cpu_list(own)}, where the kernel balances no load",
            why="all threads of a process that is not pinned thread by thread may stay on one of "
            "these processors",
            mend="OMP_PROC_BIND=true OMP_PLACES=threads, or leave them to work of one thread",
        )


def _little_memory(machine: Machine) -> Iterator[Advice]:
    total = memory.amount_kib(machine.files, "MemTotal")
    available = memory.amount_kib(machine.files, "MemAvailable")
    if total and available is not None and available < LITTLE_MEMORY * total:
        yield Advice(
            name="little-memory",
            effect="large",
            what=f"{available / total:.1%} of the memory is available",
            why="a measurement that needs more drives pages out to the disk, its own among them",
            mend="end what uses the memory",
        )


_MOST_VALUES: Final = 3
_LATENCY: Final = "idle-latency"


def advise_settings(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """One for each knob of a plain tune of the processor that would write something.

    Knobs of a process are left out: nothing about the machine is wrong without them. GPUs have
    advice of their own, which sees more than settings.
    """
    for knob in KNOBS.values():
        if knob.profile != "cpu" or not knob.default or knob.reach == "process":
            continue
        if knob.name == _LATENCY and not idle_states(machine.files):
            continue  # the device is there and can be held, but nothing sleeps
        changes = [
            setting
            for setting in knob.survey(machine, Wish()).settings
            if setting.wanted is not None
            and not knob.same(setting.place, setting.found, setting.wanted)
        ]
        if changes:
            yield Advice(
                name=knob.name,
                effect=knob.effect,
                what=f"{knob.about}: {_values(changes)}",
                why=knob.why,
                mend=f"{'sudo ' * knob.needs_root}torchyard machine quiet --only {knob.name}",
                needs_root=knob.needs_root,
            )


def _values(changes: list[Setting]) -> str:
    """Found and wanted values under the names of their files, with how many places have them."""
    counts = Counter(
        (_file_name(setting.place), setting.found or "nothing", setting.wanted or "nothing")
        for setting in changes
    )
    shown = [
        f"{name}{found} instead of {wanted}" + (f" ({count} places)" if count > 1 else "")
        for (name, found, wanted), count in counts.most_common(_MOST_VALUES)
    ]
    more = len(counts) - _MOST_VALUES
    return ", ".join([*shown, *([f"{more} more"] if more > 0 else [])])


def _file_name(place: str) -> str:
    """`no_turbo ` of a path; nothing for places that are one of many or no file of settings."""
    name = place.rpartition("/")[2]
    return "" if name == place or name[-1:].isdecimal() or place.startswith("dev/") else f"{name} "


_SLOW_CLOCKS: Final = frozenset({"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies", "xen"})
"""Sources that a program cannot read without asking the kernel."""


def advise_surroundings(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """What stays as it is until the machine, or its place, is another."""
    yield from _guest(machine.files)
    yield from _cores(machine.files)
    yield from _tickless_clock(machine.files)
    yield from _clock_source(machine.files)
    yield from _one_layout(machine.files)


def _guest(files: FileTree) -> Iterator[Advice]:
    who = software.virtualisation(files).value or ""
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
        mend="sudo torchyard machine quiet --cores auto -- COMMAND",
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
            mend="sudo torchyard machine quiet --only governor, or intel_pstate=passive",
            needs_root=True,
        )


def _clock_source(files: FileTree) -> Iterator[Advice]:
    source = software.clock_source(files).value
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
            mend="sudo torchyard machine quiet --aslr on",
            needs_root=True,
        )
