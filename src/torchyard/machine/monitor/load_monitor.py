"""Sample disturbances in a thread until stopped; define their kinds, units, thresholds and fixes.

Uses at most one percent of a core, however many processes there are, and runs off the measured
cores if there are others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, Self

from torchyard.machine.knob import Machine
from torchyard.machine.monitor.sources import SOURCES, MonitorScope, NoiseSource, Source
from torchyard.machine.system.file_tree import CPU

Unit = Literal["cores", "of the time", "per second"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of disturbance."""

    unit: Unit
    limit: float
    """Amounts below are not reported; counts are per core. Chosen so that a quiet machine shows
    nothing and one percent of a core's time is reported; not tuned."""
    advice: str


_ISOLATE: Final = "isolate cores: `torchyard machine quiet --cores auto`"

KINDS: Final[dict[str, Kind]] = {
    "process": Kind(unit="cores", limit=0.02, advice=f"stop it while measuring, or {_ISOLATE}"),
    "kernel thread": Kind(unit="cores", limit=0.01, advice=f"work of the kernel; {_ISOLATE}"),
    "torchyard": Kind(unit="cores", limit=0.05, advice="fewer processes make sampling cheaper"),
    "steal": Kind(
        unit="of the time",
        limit=0.01,
        advice="other guests use the host: use a dedicated host, or measure at another time",
    ),
    "interrupt time": Kind(
        unit="of the time",
        limit=0.01,
        advice="keep interrupts off the cores: `torchyard machine quiet --only interrupts --cores ...`",
    ),
    "interrupt": Kind(
        unit="per second",
        limit=1000.0,
        advice="keep it off the cores: `torchyard machine quiet --only interrupts --cores ...`",
    ),
    "timer interrupt": Kind(
        unit="per second",
        limit=1500.0,
        advice="more than the usual tick: timers of a program; nohz_full at boot stops the tick",
    ),
    "soft interrupt": Kind(
        unit="per second",
        limit=1000.0,
        advice="network or disk I/O: stop it, or keep its interrupts off the cores",
    ),
    "waiting for a core": Kind(
        unit="of the time",
        limit=0.05,
        advice="more runnable threads than cores: stop programs, or measure with fewer threads",
    ),
    "waiting for memory": Kind(
        unit="of the time", limit=0.01, advice="memory pressure: stop programs that use much memory"
    ),
    "waiting for a disk": Kind(unit="of the time", limit=0.20, advice="heavy disk I/O: stop it"),
    "page moves": Kind(
        unit="per second",
        limit=500.0,
        advice="the kernel migrates or compacts memory: `torchyard machine quiet` stops NUMA "
        "balancing; free memory stops the rest",
    ),
    "swap": Kind(unit="per second", limit=1.0, advice="memory pressure: stop programs"),
}

_KERNEL_THREADS: Final = {
    "kdamond": "the kernel's memory access monitor (DAMON): switch it off with the modules "
    "damon_reclaim, damon_lru_sort or with damo",
    "kswapd": "memory pressure: stop programs that use much memory",
    "kcompactd": "memory compaction: free memory, or use huge pages only on request",
    "khugepaged": "it assembles huge pages: `torchyard machine quiet --thp madvise`",
    "ksoftirqd": "network or disk I/O: stop it, or keep its interrupts off the cores",
    "kworker": "`torchyard machine quiet --only workqueues --cores ...` keeps most of it away",
    "rcu": "rcu_nocbs at boot keeps it off cores: `torchyard machine boot`",
    "migration": "the scheduler migrates processes: pin them",
    "jbd": "a program writes to the disk: stop it",
}


def advice_for(noise_source: NoiseSource) -> str:
    """Return the suggested fix for a noise source."""
    if noise_source.kind == "kernel thread":
        for name, advice in _KERNEL_THREADS.items():
            if noise_source.what.startswith(name):
                return advice
    return KINDS[noise_source.kind].advice


PERIOD_S: Final = 0.5
COST_SHARE: Final = 0.01
"""When a sample is slow, because there are many processes, samples are taken less often."""


@dataclass(frozen=True, kw_only=True)
class LoadSample:
    """Activity of all noise sources between two readings."""

    started_ns: int
    ended_ns: int
    """CLOCK_MONOTONIC, the clock of the blocks, shared by all processes."""
    amounts: Mapping[NoiseSource, float]
    """In the unit of the kind: cores, share of the time, or per second."""


class LoadMonitor:
    """Samples other activity in a thread. A context manager; `samples` is readable at any time."""

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        cores: Sequence[int] = (),
        own_pid: int | None = None,
        period_s: float = PERIOD_S,
        sources: Sequence[Callable[[], Source]] = SOURCES,
    ) -> None:
        """Without `cores`, all CPUs count as measured."""
        files = (machine or Machine()).files
        online = files.read(f"{CPU}/online").cpus or tuple(range(os.cpu_count() or 1))
        self._scope = MonitorScope(
            files=files,
            cores=tuple(cores) or online,
            everywhere=not cores or set(online) <= set(cores),
            own_pid=os.getpid() if own_pid is None else own_pid,
        )
        self._other_cores = tuple(core for core in online if core not in self._scope.cores)
        self._sources = [make() for make in sources]
        self._period_s = period_s
        self._stretches: list[LoadSample] = []
        self._cost_s = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_ns = 0

    @property
    def samples(self) -> tuple[LoadSample, ...]:
        """In chronological order."""
        return tuple(self._stretches)

    @property
    def cost_share(self) -> float:
        """CPU time of sampling, as a share of a core."""
        if not self._stretches:
            return 0.0
        monitored_ns = self._stretches[-1].ended_ns - self._stretches[0].started_ns
        return self._cost_s * 1e9 / max(1, monitored_ns)

    @property
    def unavailable(self) -> dict[str, str]:
        """Unavailable sources, and why."""
        return {source.name: source.unavailable for source in self._sources if source.unavailable}

    def __enter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._sample_until_stopped, name="torchyard-monitor", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def sample(self) -> None:
        """Take one sample; the first call only sets the start."""
        before = time.thread_time()
        now_ns = time.perf_counter_ns()
        added: dict[NoiseSource, float] = {}
        for source in self._sources:
            added.update(source.since_last(self._scope))
        elapsed_s = max(1e-9, (now_ns - self._last_ns) / 1e9)
        if self._last_ns:
            self._stretches.append(
                LoadSample(
                    started_ns=self._last_ns,
                    ended_ns=now_ns,
                    amounts={
                        source: self._amount(source, total, elapsed_s)
                        for source, total in added.items()
                    },
                )
            )
        self._last_ns = now_ns
        self._cost_s += time.thread_time() - before

    def _amount(self, source: NoiseSource, total: float, elapsed_s: float) -> float:
        """Return the amount in the unit of the kind; interrupts are counted per core."""
        rate = total / elapsed_s
        if KINDS[source.kind].unit == "of the time":
            return min(1.0, rate)
        per_core = source.kind in ("interrupt", "timer interrupt", "soft interrupt")
        return rate / len(self._scope.cores) if per_core else rate

    def _sample_until_stopped(self) -> None:
        if self._other_cores and self._scope.files.live:
            with suppress(OSError):  # not allowed in some containers: then it runs anywhere
                os.sched_setaffinity(0, self._other_cores)  # of this thread only
        while True:
            began = time.thread_time()
            self.sample()
            cost_s = time.thread_time() - began
            if self._stop.wait(max(self._period_s, cost_s / COST_SHARE)):
                self.sample()
                return
