"""What the machine does just now, seen over a short window: who is busy, who waits, what is stolen.

Reads twice and compares; writes nothing and needs no root. A copy of a machine does not move, so
only the kernel's own averages are left there. Knows nothing of what is too much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Fact
from torchyard.machine.facts import load, topology
from torchyard.machine.file_tree import FileTree
from torchyard.machine.guards.watching import Watch
from torchyard.machine.knob import Machine

__all__ = ["WINDOW_S", "Activity", "Busy", "activity_facts", "watch_activity"]

WINDOW_S: Final = 0.5
"""Fifty ticks of /proc/stat: a processor that is busy by 2 % shows."""
_MOST_NAMES: Final = 3
_LEAST_SHARE: Final = 0.05
"""Of one processor; who uses less is not named."""
_IDLE, _WAITING_FOR_DISK, _STOLEN = 3, 4, load.STEAL
"""Places in /proc/stat: user nice system idle iowait irq softirq steal."""


@dataclass(frozen=True, kw_only=True)
class Busy:
    """A process that used processors in the window."""

    pid: int
    name: str
    processors: float
    """How many it used, on average."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What moved in the window; None where it cannot be told."""

    processors: int
    """How many there are."""
    window_s: float = 0.0
    """0 for a copy: nothing moves there."""
    busy_processors: float | None = None
    """How many were in use, on average; in a copy, the load average of the last minute."""
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
        """Part of all processors that was in use."""
        if self.busy_processors is None or not self.processors:
            return None
        return self.busy_processors / self.processors


def watch_activity(
    machine: Machine,
    *,
    window_s: float = WINDOW_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Activity:
    """Look, wait, look again. Sleeps between, so this process does not count itself."""
    files = machine.files
    processors = len(topology.online(files))
    if window_s <= 0:
        return _of_averages(files, processors)
    with Watch(machine) as watch:
        processes = _process_ticks(files)
        watch.begin()
        waited_us = load.waited_us(files, "cpu")
        ticks, started = load.processor_times(files), time.monotonic()
        sleep(window_s)
        elapsed_s = max(time.monotonic() - started, 1e-9)
        passed = _difference(ticks, load.processor_times(files))
        waited_share = _share(waited_us, load.waited_us(files, "cpu"), elapsed_s * 1e6)
        seen = watch.end()
        processes_after = _process_ticks(files)
    # The window by the machine's own clock: a test's tree may pass a minute in no time.
    every = sum(passed)
    recent = load.pressure_share(files, "cpu")
    shares = [share for share in (waited_share, recent) if share is not None]
    watched_s = (seen.get("watched_ns") or 0) / 1e9
    swapped, stalled_ns = seen.get("swapped_pages"), seen.get("memory_stall_ns")
    throttled, cooling = seen.get("throttle_events"), seen.get("cooling_state")
    return Activity(
        processors=processors,
        window_s=elapsed_s,
        busy_processors=processors * _busy(passed) / every if every else None,
        busiest=_busiest(processes, processes_after, processors, every),
        waiting_share=max(shares, default=None),
        stolen_share=passed[_STOLEN] / every if every else None,
        swapped_pages_per_s=None if swapped is None else swapped / watched_s,
        memory_stall_share=None if stalled_ns is None else stalled_ns / 1e9 / watched_s,
        throttle_events=None if throttled is None else int(throttled),
        cooling_state=None if cooling is None else int(cooling),
    )


def activity_facts(activity: Activity) -> tuple[Fact, ...]:
    """What was seen, as facts beside those of `facts.load`."""
    because = "nothing moves in a copy" if not activity.window_s else "/proc/stat does not tell"
    busy = activity.busy_processors if activity.window_s else None
    named = ", ".join(
        f"{each.name} ({each.pid}) {each.processors:.1f}" for each in activity.busiest
    )
    rows = {
        "processors in use now": None
        if busy is None
        else f"{busy:.1f} of {activity.processors}" + (f": {named}" if named else ""),
        "stolen by the host now": None
        if activity.stolen_share is None
        else f"{activity.stolen_share:.1%}",
    }
    return tuple(
        Fact(section=load.SECTION, name=name, value=value)
        if value is not None
        else Fact(section=load.SECTION, name=name, unavailable=because)
        for name, value in rows.items()
    )


def _of_averages(files: FileTree, processors: int) -> Activity:
    averages = load.load_averages(files).value
    try:
        busy = float(averages.split()[0]) if averages else None
    except ValueError:
        busy = None
    return Activity(
        processors=processors,
        busy_processors=busy,
        waiting_share=load.pressure_share(files, "cpu"),
    )


def _difference(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    """Ticks that passed, by kind; counters of some virtual machines go backwards, by a little."""
    if len(before) <= _STOLEN or len(after) <= _STOLEN:
        return ()
    return tuple(max(0, late - early) for early, late in zip(before, after, strict=True))


def _busy(passed: tuple[int, ...]) -> int:
    idle = passed[_IDLE] + passed[_WAITING_FOR_DISK] + passed[_STOLEN]
    return sum(passed) - idle


def _share(before: int | None, after: int | None, whole: float) -> float | None:
    if before is None or after is None:
        return None
    return min(1.0, max(0, after - before) / whole)


def _process_ticks(files: FileTree) -> dict[int, tuple[str, int]]:
    """Process -> (name, ticks that it and its threads have used)."""
    found: dict[int, tuple[str, int]] = {}
    for number in files.names("proc"):
        if number.isdecimal():
            text = files.read(f"proc/{number}/stat").value or ""
            # The name is in brackets and may hold anything, brackets and blanks among it.
            name = text.partition("(")[2].rpartition(")")[0]
            fields = text.rpartition(")")[2].split()
            match fields[11:13]:
                case [user, system] if user.isdecimal() and system.isdecimal():
                    found[int(number)] = (name, int(user) + int(system))
    return found


def _busiest(
    before: dict[int, tuple[str, int]],
    after: dict[int, tuple[str, int]],
    processors: int,
    ticks: int,
) -> tuple[Busy, ...]:
    """Who used most; one that was started in the window counts from its start."""
    if not ticks:
        return ()
    found = [
        Busy(
            pid=pid,
            name=name,
            processors=processors * (used - before.get(pid, (name, 0))[1]) / ticks,
        )
        for pid, (name, used) in after.items()
    ]
    found = [each for each in found if each.processors >= _LEAST_SHARE]
    return tuple(sorted(found, key=lambda each: -each.processors)[:_MOST_NAMES])
