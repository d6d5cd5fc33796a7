"""Observe the machine over a short window: busy processes, pressure, steal.

Two readings of the load monitor and the guards with a sleep between them; writes nothing and needs
no root. A copy of a machine does not change over time, so only the kernel's own averages are
available there. Does not judge.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torchyard.machine.facts import load
from torchyard.machine.guards.host_guards import Watch
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact
from torchyard.machine.monitor.load_monitor import LoadMonitor, LoadSample
from torchyard.machine.system.cores import Topology
from torchyard.machine.system.file_tree import FileTree

__all__ = ["WINDOW_S", "Activity", "Busy", "activity_facts", "observe_activity"]

WINDOW_S: Final = 0.5
"""Fifty ticks of /proc/stat: a processor that is busy by 2 % shows."""
_MOST_NAMES: Final = 3
_LEAST_PROCESSORS: Final = 0.05
"""Who uses less is counted and not named."""
_WORKING: Final = ("process", "kernel thread")


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Programs of one name that used processors in the window."""

    name: str
    processors: float
    """How many they used together, on average."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What moved in the window; None where it cannot be told."""

    processors: int
    """How many there are."""
    window_s: float = 0.0
    """0 for a copy: nothing moves there."""
    busy_processors: float | None = None
    """How many other programs used; in a copy, the load average of the last minute."""
    busiest: tuple[Busy, ...] = ()
    waiting_share: float | None = None
    """Part of the time in which somebody waited for a processor: the larger of this window and of
    the ten seconds before its end, as a window may fall between two bursts."""
    stolen_share: float | None = None
    """Part of the time of all processors that the host took."""
    swapped_pages_per_s: float | None = None
    memory_stall_share: float | None = None
    """Part of the time in which somebody waited for memory."""
    throttle_events: int | None = None
    cooling_state: int | None = None
    """How far heat holds the processor down; 0 is not at all."""

    @property
    def busy_share(self) -> float | None:
        """Part of all processors that others used."""
        if self.busy_processors is None or not self.processors:
            return None
        return self.busy_processors / self.processors


def observe_activity(
    machine: Machine,
    *,
    window_s: float = WINDOW_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Activity:
    """Look, wait, look again."""
    processors = len(Topology.read(machine.files).online)
    recent_share = load.pressure_share(machine.files, "cpu")
    if window_s <= 0:
        return _of_averages(machine.files, processors, recent_share)
    monitor = LoadMonitor(machine)
    with Watch(machine) as watch:
        watch.begin()
        monitor.sample()
        sleep(window_s)
        monitor.sample()
        seen = watch.end()
    sample = monitor.samples[-1]
    waited_share = _amount(sample, "waiting for a core", blind="pressure" in monitor.unavailable)
    shares = [share for share in (waited_share, recent_share) if share is not None]
    watched_s = (seen.get("watched_ns") or 1) / 1e9
    swapped, stalled_ns = seen.get("swapped_pages"), seen.get("memory_stall_ns")
    throttled, cooling = seen.get("throttle_events"), seen.get("cooling_state")
    return Activity(
        processors=processors,
        window_s=(sample.ended_ns - sample.started_ns) / 1e9,
        busy_processors=_amount(sample, *_WORKING, blind="processes" in monitor.unavailable),
        busiest=_busiest(sample),
        waiting_share=max(shares, default=None),
        stolen_share=_amount(sample, "steal", blind="processor time" in monitor.unavailable),
        swapped_pages_per_s=None if swapped is None else swapped / watched_s,
        memory_stall_share=None if stalled_ns is None else stalled_ns / 1e9 / watched_s,
        throttle_events=None if throttled is None else int(throttled),
        cooling_state=None if cooling is None else int(cooling),
    )


def activity_facts(activity: Activity) -> tuple[Fact, ...]:
    """What was seen, as facts beside those of `facts.load`."""
    because = "/proc does not tell" if activity.window_s else "nothing moves in a copy"
    busy = activity.busy_processors if activity.window_s else None
    named = ", ".join(f"{each.name} {each.processors:.1f}" for each in activity.busiest)
    used = f"{busy or 0:.1f} of {activity.processors}" + (f": {named}" if named else "")
    rows = {
        "processors used by others now": (busy, used),
        "stolen by the host now": (activity.stolen_share, f"{activity.stolen_share or 0:.1%}"),
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


def _amount(sample: LoadSample, *kinds: str, blind: bool) -> float | None:
    """The sum over everybody of these kinds; nobody is 0, and not being able to see is None."""
    return None if blind else sum(n for who, n in sample.amounts.items() if who.kind in kinds)


def _busiest(sample: LoadSample) -> tuple[Busy, ...]:
    found = [
        Busy(name=who.what, processors=processors)
        for who, processors in sample.amounts.items()
        if who.kind in _WORKING and processors >= _LEAST_PROCESSORS
    ]
    return tuple(sorted(found, key=lambda each: -each.processors)[:_MOST_NAMES])
