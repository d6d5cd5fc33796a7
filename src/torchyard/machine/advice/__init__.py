"""Everything about a machine at one moment: facts, current activity and ranked advice.

Advisers say what makes measurements worse on this machine, with the evidence and a suggested fix.
They read only, and judge with the readers of `facts`; what a knob could write is asked of the knobs.
This module judges limits, settings, kernel and virtualization; `activity` and `gpu_advice` the rest.
To add one, write a function `(machine, activity) -> Iterator[Advice]` and add it to `ADVISERS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from torchyard.core.cpu_lists import cpu_list
from torchyard.errors import UsageError
from torchyard.machine.advice import gpu_advice
from torchyard.machine.advice.activity import (
    WINDOW_S,
    Activity,
    activity_facts,
    advise_activity,
    observe_activity,
)
from torchyard.machine.facts import isolation, load, memory, processor, read_sections, software
from torchyard.machine.facts.isolation import boot_values
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import EFFECTS, Advice, MachineView, QuietRequest, Setting
from torchyard.machine.system.cores import choose_cores, idle_states
from torchyard.machine.system.file_tree import FileTree

LITTLE_MEMORY: Final = 0.05
"""Share of all memory; around there the kernel starts to reclaim pages."""


def advise_limits(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """Yield advice on the limits of this process."""
    yield from _quota(machine)
    yield from _unbalanced(machine)
    yield from _little_memory(machine)


def _quota(machine: Machine) -> Iterator[Advice]:
    allowed = len(isolation.allowed(machine.files).cpus)
    try:
        quota = float(isolation.quota_processors(machine.files).value or "inf")
    except ValueError:  # `all`
        return
    if quota < allowed:
        yield Advice(
            name="quota",
            effect="large",
            what=f"this process may run on {allowed} CPUs, but its quota is {quota:g} CPUs",
            why="with more threads than that, the kernel throttles all of them until the next "
            "period, usually 100 ms",
            fix=f"OMP_NUM_THREADS={max(1, int(quota))}, or give the container whole CPUs "
            "(docker run --cpuset-cpus)",
        )


def _unbalanced(machine: Machine) -> Iterator[Advice]:
    """Advise on CPUs of isolcpus, between which the kernel does not balance load."""
    isolated_cpus = set(isolation.isolated_cpus(machine.files))
    own = tuple(cpu for cpu in isolation.allowed(machine.files).cpus if cpu in isolated_cpus)
    if len(own) > 1:
        yield Advice(
            name="unbalanced",
            effect="large",
            what=f"this process may use CPUs {cpu_list(own)}, which have no load balancing",
            why="unless each thread is pinned, all threads of a process may stay on one of these "
            "CPUs",
            fix="OMP_PROC_BIND=true OMP_PLACES=threads, or use them for single-threaded work only",
        )


def _little_memory(machine: Machine) -> Iterator[Advice]:
    total = memory.amount_kib(machine.files, "MemTotal")
    available = memory.amount_kib(machine.files, "MemAvailable")
    if total and available is not None and available < LITTLE_MEMORY * total:
        yield Advice(
            name="little-memory",
            effect="large",
            what=f"{available / total:.1%} of the memory is available",
            why="a measurement that needs more swaps pages out, its own among them",
            fix="stop the programs that use the memory",
        )


_MOST_VALUES: Final = 3
_LATENCY: Final = "idle-latency"


def advise_settings(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """Yield one advice for each default CPU knob that would write something.

    Process knobs are excluded, because they do not describe the machine. GPUs have advice of their
    own, which uses more than settings.
    """
    for knob in KNOBS.values():
        if knob.profile != "cpu" or not knob.described.default or knob.reach == "process":
            continue
        if knob.name == _LATENCY and not idle_states(machine.files):
            continue  # the device exists, but there are no idle states
        changes = [
            setting
            for setting in knob.survey(machine, QuietRequest()).settings
            if setting.wanted is not None
            and not knob.same(setting.place, setting.found, setting.wanted)
        ]
        if changes:
            yield Advice(
                name=knob.name,
                effect=knob.described.effect,
                what=f"{knob.described.about}: {_values(changes)}",
                why=knob.described.why,
                fix=f"{'sudo ' * knob.needs_root}torchyard machine quiet --only {knob.name}",
                needs_root=knob.needs_root,
            )


def _values(changes: list[Setting]) -> str:
    """Format present and requested values by file name, with the number of locations."""
    counts = Counter(
        (_file_name(setting.place), setting.found or "none", setting.wanted or "none")
        for setting in changes
    )
    shown = [
        f"{name}{present} instead of {requested}" + (f" ({count} times)" if count > 1 else "")
        for (name, present, requested), count in counts.most_common(_MOST_VALUES)
    ]
    more = len(counts) - _MOST_VALUES
    return ", ".join([*shown, *([f"{more} more"] if more > 0 else [])])


def _file_name(place: str) -> str:
    """Return `no_turbo ` for a path; empty for numbered files, devices and other locations."""
    name = place.rpartition("/")[2]
    return "" if name == place or name[-1:].isdecimal() or place.startswith("dev/") else f"{name} "


_SLOW_CLOCKS: Final = frozenset({"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies", "xen"})
"""Clock sources that need a system call to read."""


def advise_surroundings(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """Yield advice on conditions that settings cannot change at run time."""
    yield from _guest(machine.files)
    yield from _cores(machine.files)
    yield from _tickless_clock(machine.files)
    yield from _clock_source(machine.files)
    yield from _one_layout(machine.files)


def _guest(files: FileTree) -> Iterator[Advice]:
    hypervisor = software.virtualisation(files).value or ""
    if hypervisor.startswith(software.GUEST_OF):
        yield Advice(
            name="guest",
            effect="medium",
            what=f"this machine is a {hypervisor}",
            why="other guests share caches, memory bandwidth and the clock, and are not visible "
            "here; published spreads of benchmarks are 0.03 % to over 100 % across clouds, and "
            "2.7 % on one vendor's rented runners against 0.6 % on its own machines",
            fix="compare within one run, in pairs of random order, as `torchyard bench` does; "
            "numbers of different days or instances are not comparable",
        )


def _cores(files: FileTree) -> Iterator[Advice]:
    if isolation.isolated_cpus(files):
        return
    try:
        choose_cores(files, "auto")
    except (UsageError, IndexError):  # one core, or no topology at all
        return
    yield Advice(
        name="cores",
        effect="medium",
        what="no core is isolated for measuring",
        why="the kernel and other programs run on every core; published for a microbenchmark of "
        "36.6 ns: isolation reduced the standard deviation from 1.3 to 0.1 ns at the same median",
        fix="sudo torchyard machine quiet --cores auto -- COMMAND",
        needs_root=True,
    )
    if "isolcpus" not in boot_values(files):
        yield Advice(
            name="cores-at-boot",
            effect="small",
            what="no cores are isolated at boot",
            why="isolation at boot also removes timer ticks and RCU callbacks, which is not "
            "possible later; for dedicated benchmark machines",
            fix="torchyard machine boot --cores auto",
            needs_root=True,
            needs_reboot=True,
        )


def _tickless_clock(files: FileTree) -> Iterator[Advice]:
    tickless = files.read("sys/devices/system/cpu/nohz_full").cpus
    if tickless and processor.frequency_driver(files).value == "intel_pstate":
        yield Advice(
            name="tickless-clock",
            effect="large",
            what="nohz_full CPUs with the intel_pstate driver",
            why="the driver's governor needs the timer tick to detect load, so these CPUs may stay "
            "at a low clock (Red Hat bug 1378529)",
            fix="sudo torchyard machine quiet --only governor, or intel_pstate=passive",
            needs_root=True,
        )


def _clock_source(files: FileTree) -> Iterator[Advice]:
    source = software.clock_source(files).value
    if source in _SLOW_CLOCKS:
        yield Advice(
            name="clock-source",
            effect="small",
            what=f"the clock source is {source}",
            why="each read of the clock is a system call, which disturbs short measurements",
            fix="check the kernel log for why it rejected the TSC; "
            "clocksource=tsc tsc=reliable keeps it",
            needs_reboot=True,
        )


def _one_layout(files: FileTree) -> Iterator[Advice]:
    if memory.randomisation(files).value == "0":
        yield Advice(
            name="one-layout",
            effect="medium",
            what="address space layout randomization is off",
            why="launches agree better (measured standard deviation 1.2 instead of 3.2 %), but all "
            "share one memory layout, whose bias then counts as a difference between two builds",
            fix="sudo torchyard machine quiet --aslr on",
            needs_root=True,
        )


ADVISERS: Final[tuple[Callable[[Machine, Activity], Iterator[Advice]], ...]] = (
    advise_activity,
    advise_limits,
    advise_settings,
    advise_surroundings,
    gpu_advice.advise,
)


def advise(machine: Machine, activity: Activity) -> tuple[Advice, ...]:
    """Return all advice: what makes the machine unfit first, then by effect."""
    advice = [item for adviser in ADVISERS for item in adviser(machine, activity)]
    return tuple(sorted(advice, key=lambda item: (not item.unfit, EFFECTS.index(item.effect))))


def view_machine(machine: Machine, *, window_s: float = WINDOW_S) -> MachineView:
    """Return facts and advice. Samples the load for `window_s`; a copy of a machine takes no time.

    The load is sampled first, because running compilers for their versions would appear in it.
    """
    activity = observe_activity(machine, window_s=window_s if machine.files.live else 0.0)
    facts = list(read_sections(machine))
    last = max(
        (n for n, fact in enumerate(facts, start=1) if fact.section == load.LOAD_SECTION), default=0
    )
    facts[last:last] = activity_facts(activity)
    return MachineView(facts=tuple(facts), advice=advise(machine, activity))
