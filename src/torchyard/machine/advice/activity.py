"""Observe the machine over a short window (busy processes, pressure, steal), and judge it.

Two samples of the load monitor and the guards, with a sleep between them; writes nothing and needs
no root. A copy of a machine does not change over time, so only the kernel's own averages are
available there. Unfit means that a block measured now would be rejected by the guards, or that the
clock is limited from outside: no method of comparison removes that. Everything else is advice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from torchyard.machine.facts import load
from torchyard.machine.guards.block_check import (
    MEMORY_STALL_SHARE_LIMIT,
    STEAL_SHARE_LIMIT,
    SWAPPED_PAGES_PER_SECOND_LIMIT,
    WAIT_SHARE_LIMIT,
)
from torchyard.machine.guards.host_guards import HostGuards
from torchyard.machine.knob import Machine
from torchyard.machine.load_monitor import LoadMonitor, LoadSample
from torchyard.machine.model import Advice, Fact
from torchyard.machine.system.cores import Topology
from torchyard.machine.system.file_tree import FileTree

WINDOW_S: Final = 0.5
"""Fifty ticks of /proc/stat: detects a CPU that is 2 % busy."""
_MOST_NAMES: Final = 3
_LEAST_PROCESSORS: Final = 0.05
"""Programs that use less are counted and not named."""
_WORKING: Final = ("process", "kernel thread")


@dataclass(frozen=True, kw_only=True)
class BusyProgram:
    """CPU use of all programs of one name in the window."""

    name: str
    processors: float
    """CPUs they used together, on average."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Activity in the window; None if unknown."""

    processors: int
    """Number of CPUs."""
    window_s: float = 0.0
    """0 for a copy of a machine."""
    busy_processors: float | None = None
    """CPUs that other programs used; in a copy, the load average of the last minute."""
    busiest: tuple[BusyProgram, ...] = ()
    waiting_share: float | None = None
    """Share of the time in which some process waited for a CPU: the larger of this window and of
    the ten seconds before its end, as a window may fall between two bursts."""
    stolen_share: float | None = None
    """Share of CPU time that the host stole."""
    swapped_pages_per_s: float | None = None
    memory_stall_share: float | None = None
    """Share of the time in which some process waited for memory."""
    throttle_events: int | None = None
    cooling_state: int | None = None
    """Highest state of the CPU cooling devices; 0: not limited."""

    @property
    def busy_share(self) -> float | None:
        """Share of all CPUs that other programs used."""
        if self.busy_processors is None or not self.processors:
            return None
        return self.busy_processors / self.processors


def observe_activity(
    machine: Machine, *, window_s: float = WINDOW_S, sleep: Callable[[float], None] = time.sleep
) -> Activity:
    """Sample, wait for the window, and sample again."""
    processors = len(Topology.read(machine.files).online)
    recent_share = load.pressure_share(machine.files, "cpu")
    if window_s <= 0:
        return _of_averages(machine.files, processors, recent_share)
    monitor = LoadMonitor(machine)
    with HostGuards(machine) as watch:
        watch.begin()
        monitor.sample()
        sleep(window_s)
        monitor.sample()
        readings = watch.end()
    sample = monitor.samples[-1]
    waited_share = _amount(
        sample, "waiting for a core", unavailable="pressure" in monitor.unavailable
    )
    shares = [share for share in (waited_share, recent_share) if share is not None]
    watched_s = (readings.get("watched_ns") or 1) / 1e9
    swapped, stalled_ns = readings.get("swapped_pages"), readings.get("memory_stall_ns")
    throttled, cooling = readings.get("throttle_events"), readings.get("cooling_state")
    return Activity(
        processors=processors,
        window_s=(sample.ended_ns - sample.started_ns) / 1e9,
        busy_processors=_amount(sample, *_WORKING, unavailable="processes" in monitor.unavailable),
        busiest=_busiest(sample),
        waiting_share=max(shares, default=None),
        stolen_share=_amount(sample, "steal", unavailable="processor time" in monitor.unavailable),
        swapped_pages_per_s=None if swapped is None else swapped / watched_s,
        memory_stall_share=None if stalled_ns is None else stalled_ns / 1e9 / watched_s,
        throttle_events=None if throttled is None else int(throttled),
        cooling_state=None if cooling is None else int(cooling),
    )


def activity_facts(activity: Activity) -> tuple[Fact, ...]:
    """Return the activity as facts, to be shown with those of `facts.load`."""
    because = "/proc does not show it" if activity.window_s else "a copy has no activity"
    busy = activity.busy_processors if activity.window_s else None
    named = ", ".join(f"{each.name} {each.processors:.1f}" for each in activity.busiest)
    used = f"{busy or 0:.1f} of {activity.processors}" + (f": {named}" if named else "")
    rows = {
        "CPUs used by other programs": (busy, used),
        "steal time now": (activity.stolen_share, f"{activity.stolen_share or 0:.1%}"),
    }
    return tuple(
        Fact(section=load.LOAD_SECTION, name=name, unavailable=because)
        if number is None
        else Fact(section=load.LOAD_SECTION, name=name, value=text)
        for name, (number, text) in rows.items()
    )


def _of_averages(files: FileTree, processors: int, recent_share: float | None) -> Activity:
    averages = load.load_averages(files).value
    try:
        busy = float(averages.split()[0]) if averages else None
    except ValueError:
        busy = None
    return Activity(processors=processors, busy_processors=busy, waiting_share=recent_share)


def _amount(sample: LoadSample, *kinds: str, unavailable: bool) -> float | None:
    """Return the sum over all sources of these kinds; None if unavailable."""
    if unavailable:
        return None
    return sum(amount for source, amount in sample.amounts.items() if source.kind in kinds)


def _busiest(sample: LoadSample) -> tuple[BusyProgram, ...]:
    programs = [
        BusyProgram(name=source.what, processors=processors)
        for source, processors in sample.amounts.items()
        if source.kind in _WORKING and processors >= _LEAST_PROCESSORS
    ]
    return tuple(sorted(programs, key=lambda each: -each.processors)[:_MOST_NAMES])


BUSY_SHARE_UNFIT: Final = 0.25
"""A quarter of all CPUs in use: clocks, caches and memory bandwidth are shared, and a program with
a thread on every core waits. Chosen, not measured."""
WAITING_BUSY_SHARE: Final = 0.10
"""Below it, a process may wait on one core while nearly all others are idle: advice only."""
BUSY_PROCESSORS_ADVICE: Final = 0.2
"""A desktop or a few daemons. Chosen, not measured."""
STOLEN_OF_DEMAND_ADVICE: Final = 0.01
"""Since boot, of the time that this guest requested: nothing can be stolen while it is idle, so the
present moment says little."""
_CONTENTION: Final = (
    "two cores under load 4 to 7, measured: 23 % of calls were preempted, and comparing one variant "
    "after the other for 20 s called identical code different in 76 % of tries"
)


def advise_activity(machine: Machine, activity: Activity) -> Iterator[Advice]:
    """Yield advice on current disturbances."""
    yield from _processors(activity)
    yield from _stolen(machine, activity)
    yield from _memory(activity)
    yield from _clock(machine, activity)


def _processors(activity: Activity) -> Iterator[Advice]:
    busy, share = activity.busy_processors, activity.busy_share
    if busy is None or share is None:
        return
    waiting = activity.waiting_share or 0.0
    named = ", ".join(each.name for each in activity.busiest)
    what = f"other programs use {busy:.1f} of {activity.processors} CPUs"
    if not activity.window_s:
        what = f"load average {busy:.1f} on {activity.processors} CPUs"
    if waiting >= WAIT_SHARE_LIMIT:
        what += f"; processes waited for a CPU {waiting:.0%} of the time"
    contended = waiting >= WAIT_SHARE_LIMIT and share >= WAITING_BUSY_SHARE
    if contended or share >= BUSY_SHARE_UNFIT:
        yield Advice(
            name="busy",
            effect="large",
            what=what + (f": {named}" if named else ""),
            why=_CONTENTION,
            fix="wait until they finish, or stop them",
            unfit=True,
        )
    elif waiting >= WAIT_SHARE_LIMIT or busy >= BUSY_PROCESSORS_ADVICE:
        yield Advice(
            name="busy",
            effect="medium",
            what=what + (f": {named}" if named else ""),
            why="programs that share cores, caches or the power budget change the timings",
            fix="stop them, or isolate cores: sudo torchyard machine quiet --cores auto -- COMMAND",
        )


def _stolen(machine: Machine, activity: Activity) -> Iterator[Advice]:
    now = activity.stolen_share or 0.0
    if now > STEAL_SHARE_LIMIT:
        yield Advice(
            name="stolen",
            effect="large",
            what=f"steal time: the host takes {now:.0%} of this machine's CPU time",
            why="a measurement is paused during steal time while its clock continues",
            fix="measure at another time, on dedicated CPUs or on another host",
            unfit=True,
        )
        return
    times = load.processor_times(machine.files)
    if len(times) <= load.STEAL:
        return
    idle = times[3] + times[4]
    demand = sum(times) - idle
    if demand and times[load.STEAL] / demand >= STOLEN_OF_DEMAND_ADVICE:
        yield Advice(
            name="stolen",
            effect="medium",
            what=f"steal time: the host took {times[load.STEAL] / demand:.1%} of the CPU time "
            "requested since boot",
            why="it comes in bursts when other guests are active; 0.2 % was measured on one guest "
            "whose own CPUs were all busy",
            fix="use dedicated CPUs if the host offers them",
        )


def _memory(activity: Activity) -> Iterator[Advice]:
    pages = activity.swapped_pages_per_s or 0.0
    stalled = activity.memory_stall_share or 0.0
    if pages > SWAPPED_PAGES_PER_SECOND_LIMIT or stalled > MEMORY_STALL_SHARE_LIMIT:
        yield Advice(
            name="memory-short",
            effect="large",
            what=f"memory pressure: {pages:.0f} pages swapped per second, processes waited for "
            f"memory {stalled:.0%} of the time",
            why="an access to a swapped-out page waits for the disk in the middle of a call",
            fix="stop the programs that use the memory",
            unfit=True,
        )


def _clock(machine: Machine, activity: Activity) -> Iterator[Advice]:
    if activity.throttle_events or (activity.cooling_state or 0) > 0:
        yield Advice(
            name="throttled",
            effect="large",
            what="the CPU is thermally throttled now",
            why="the clock follows the temperature, so the same code takes longer as it warms up",
            fix="let it cool down, check its fans, or fix a lower clock: "
            "sudo torchyard machine quiet --frequency MHZ",
            unfit=True,
        )
    elif any(load.throttle_counts(machine.files).values()):
        yield Advice(
            name="throttled",
            effect="medium",
            what="the CPU was thermally throttled since boot",
            why="it will happen again in long measurements at full load; Krun repeats a "
            "measurement whenever these counters change",
            fix="check the cooling, or fix a lower clock: sudo torchyard machine quiet "
            "--frequency MHZ",
            needs_root=True,
        )
    if load.on_battery(machine.files):
        yield Advice(
            name="battery",
            effect="large",
            what="the machine runs on battery power",
            why="firmware lowers clocks with the charge; no setting shows or prevents that",
            fix="plug it in",
            unfit=True,
        )
