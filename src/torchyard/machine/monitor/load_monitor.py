"""Sample disturbances in a thread until stopped; define their kinds, units, thresholds and fixes.

Made to cost little: at most one percent of a core, however many processes there are, and off the
cores that are measured if there are others. Knows nothing of blocks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from torchyard.core.cpu_lists import cpus_of_list
from torchyard.machine.knob import Machine
from torchyard.machine.monitor.sources import SOURCES, Disturber, Scene, Source

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


PERIOD_S: Final = 0.5
COST_SHARE: Final = 0.01
"""When a look is slow, because there are many processes, looks are taken further apart."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """What happened between two looks."""

    started_ns: int
    ended_ns: int
    """Of the clock that blocks are timed with: CLOCK_MONOTONIC, one for all processes."""
    amounts: Mapping[Disturber, float]
    """In the unit of the kind: cores, share of the time, or per second."""


class Lookout:
    """Use as a context manager; `stretches` can be read at any time."""

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        cores: Sequence[int] = (),
        own_pid: int | None = None,
        period_s: float = PERIOD_S,
        sources: Sequence[Callable[[], Source]] = SOURCES,
    ) -> None:
        """Without `cores` every processor counts."""
        files = (machine or Machine()).files
        online = _online(cpus=files.read("sys/devices/system/cpu/online").value)
        self._scene = Scene(
            files=files,
            cores=tuple(cores) or online,
            everywhere=not cores or set(online) <= set(cores),
            own_pid=os.getpid() if own_pid is None else own_pid,
        )
        self._house = tuple(core for core in online if core not in self._scene.cores)
        self._sources = [make() for make in sources]
        self._period_s = period_s
        self._stretches: list[Stretch] = []
        self._cost_s = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_ns = 0

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """In order."""
        return tuple(self._stretches)

    @property
    def cost_share(self) -> float:
        """CPU time of the looks as a share of a core."""
        if not self._stretches:
            return 0.0
        watched_ns = self._stretches[-1].ended_ns - self._stretches[0].started_ns
        return self._cost_s * 1e9 / max(1, watched_ns)

    @property
    def unavailable(self) -> dict[str, str]:
        """Sources that can say nothing here, and why."""
        return {source.name: source.unavailable for source in self._sources if source.unavailable}

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._serve, name="torchyard-lookout", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Take one sample; the first one only sets the start."""
        before = time.thread_time()
        now_ns = time.perf_counter_ns()
        added: dict[Disturber, float] = {}
        for source in self._sources:
            added.update(source.since_last(self._scene))
        elapsed_s = max(1e-9, (now_ns - self._last_ns) / 1e9)
        if self._last_ns:
            self._stretches.append(
                Stretch(
                    started_ns=self._last_ns,
                    ended_ns=now_ns,
                    amounts={
                        who: self._amount(who, more, elapsed_s) for who, more in added.items()
                    },
                )
            )
        self._last_ns = now_ns
        self._cost_s += time.thread_time() - before

    def _amount(self, who: Disturber, more: float, elapsed_s: float) -> float:
        """Counts are per core: the same number hurts a small machine more."""
        per_core = who.kind in ("interrupt", "timer interrupt", "soft interrupt")
        share = min(1.0, more / elapsed_s) if KINDS[who.kind].unit == "of the time" else None
        if share is not None:
            return share
        return more / elapsed_s / (len(self._scene.cores) if per_core else 1)

    def _serve(self) -> None:
        if self._house and self._scene.files.live:
            with suppress(OSError):  # a limit of the container: then it runs where it may
                os.sched_setaffinity(0, self._house)  # of this thread alone
        while True:
            began = time.thread_time()
            self.look()
            cost_s = time.thread_time() - began
            if self._stop.wait(max(self._period_s, cost_s / COST_SHARE)):
                self.look()
                return


def _online(*, cpus: str | None) -> tuple[int, ...]:
    try:
        found = cpus_of_list(cpus or "")
    except ValueError:
        found = ()
    return found or tuple(range(os.cpu_count() or 1))
