"""Advise on what disturbs measurements at this moment. Most of it makes the machine unfit.

Unfit means that a block measured now would be rejected by the guards, or that the clock is limited
from outside: no method of comparison removes that. Everything else is advice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchyard.machine.advice.activity import Activity
from torchyard.machine.facts import load
from torchyard.machine.guards.block_check import (
    MEMORY_STALL_SHARE_LIMIT,
    STEAL_SHARE_LIMIT,
    SWAPPED_PAGES_PER_SECOND_LIMIT,
    WAIT_SHARE_LIMIT,
)
from torchyard.machine.knob import Machine
from torchyard.machine.model import Advice

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


def advise(machine: Machine, activity: Activity) -> Iterator[Advice]:
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
            why="a measurement stands still during steal time while its clock keeps running",
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
