"""What kinds of disturbances there are: unit, from where on they count, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from torchyard.machine.lookout.source import Disturber

__all__ = ["KINDS", "Kind", "Unit", "advice_for"]

Unit = Literal["cores", "of the time", "per second"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of disturbance."""

    unit: Unit
    limit: float
    """What is below is not mentioned; counts are meant per core. Chosen so that a quiet machine
    shows nothing and one percent of a core's time is seen; not tuned."""
    advice: str


_ISOLATE: Final = "`torchyard machine tune --cores auto` sets cores apart"

KINDS: Final[dict[str, Kind]] = {
    "process": Kind(unit="cores", limit=0.02, advice=f"stop it while measuring, or {_ISOLATE}"),
    "kernel thread": Kind(unit="cores", limit=0.01, advice=f"it works for the kernel; {_ISOLATE}"),
    "torchyard": Kind(unit="cores", limit=0.05, advice="fewer processes make its looks cheaper"),
    "steal": Kind(
        unit="of the time",
        limit=0.01,
        advice="other guests use the host: ask for a dedicated host, or measure at another time",
    ),
    "interrupt time": Kind(
        unit="of the time",
        limit=0.01,
        advice="keep interrupts off the cores: `torchyard machine tune --only interrupts --cores ...`",
    ),
    "interrupt": Kind(
        unit="per second",
        limit=1000.0,
        advice="keep it off the cores: `torchyard machine tune --only interrupts --cores ...`",
    ),
    "timer interrupt": Kind(
        unit="per second",
        limit=1500.0,
        advice="more than the usual tick: timers of some program; nohz_full at boot stops the tick",
    ),
    "soft interrupt": Kind(
        unit="per second",
        limit=1000.0,
        advice="network or disk traffic: stop it, or keep its interrupts off the cores",
    ),
    "waiting for a core": Kind(
        unit="of the time",
        limit=0.05,
        advice="more runs than there are cores: stop something, or measure with fewer threads",
    ),
    "waiting for memory": Kind(
        unit="of the time", limit=0.01, advice="memory is short: stop something that holds much"
    ),
    "waiting for a disk": Kind(
        unit="of the time", limit=0.20, advice="something reads or writes a lot: stop it"
    ),
    "page moves": Kind(
        unit="per second",
        limit=500.0,
        advice="the kernel rearranges memory: `torchyard machine tune` stops NUMA balancing; "
        "free memory stops the rest",
    ),
    "swap": Kind(unit="per second", limit=1.0, advice="memory is short: stop something"),
}

_KERNEL_THREADS: Final = {
    "kdamond": "the kernel's memory access monitor (DAMON): switch it off with the modules "
    "damon_reclaim, damon_lru_sort or with damo",
    "kswapd": "memory is short: stop something that holds much",
    "kcompactd": "the kernel gathers free pages: free memory, or huge pages only on request",
    "khugepaged": "it makes huge pages: `torchyard machine tune --thp madvise`",
    "ksoftirqd": "network or disk traffic: stop it, or keep its interrupts off the cores",
    "kworker": "`torchyard machine tune --only workqueues --cores ...` keeps most of it away",
    "rcu": "rcu_nocbs at boot keeps it off cores: `torchyard machine boot`",
    "migration": "the scheduler moves processes about: pin them",
    "jbd": "somebody writes to the disk: stop it",
}


def advice_for(disturber: Disturber) -> str:
    """What to do about it."""
    if disturber.kind == "kernel thread":
        for name, advice in _KERNEL_THREADS.items():
            if disturber.what.startswith(name):
                return advice
    return KINDS[disturber.kind].advice
