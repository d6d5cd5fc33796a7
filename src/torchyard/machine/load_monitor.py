"""Sample disturbances in a thread until stopped; define their kinds, units, thresholds and fixes.

Sources: CPU time of other processes and kernel threads, host steal and interrupt time, interrupts
and soft interrupts by source, pressure (PSI), and pages that the kernel moved, split, scanned or
swapped. Each reports how much happened since it was last asked; to add one, write a class or
a function that parses a file, list it in `SOURCES` and describe its kinds. The monitor uses at most one percent of a core, however many
processes there are, and runs off the measured cores if there are others.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol, Self

from torchyard.machine.facts.load import pressure, processor_times
from torchyard.machine.knob import Machine
from torchyard.machine.system.file_tree import CPU, FileTree
from torchyard.machine.system.tasks import Task, read_task


class NoiseSource(NamedTuple):
    """What disturbs a measurement: a kind of `load_monitor.KINDS`, and its name."""

    kind: str
    what: str


@dataclass(frozen=True, kw_only=True)
class MonitorScope:
    """What to monitor."""

    files: FileTree
    cores: tuple[int, ...]
    """CPUs that blocks run on."""
    everywhere: bool
    """Whether these are all CPUs."""
    own_pid: int
    """The process whose descendants are measured: they do not count as noise."""


class Source(Protocol):
    """One kind of kernel counters."""

    @property
    def name(self) -> str:
        """As in `unavailable: pressure, because ...`."""

    @property
    def unavailable(self) -> str:
        """Why it is unavailable; empty if available. Known after the first call."""

    def since_last(self, scope: MonitorScope) -> Mapping[NoiseSource, float]:
        """Return the increase since the last call in seconds or counts; the first call returns none."""


Totals = Mapping[NoiseSource, float]
"""Counters since boot."""


class CounterSource:
    """Counters of one file that only grow; a counter that fell was reset."""

    def __init__(
        self, name: str, file: str, totals: Callable[[str, tuple[int, ...]], Totals]
    ) -> None:
        """`totals` parses the file, for these CPUs."""
        self.name = name
        self.unavailable = ""
        self._file = file
        self._totals = totals
        self._before: Totals | None = None

    def since_last(self, scope: MonitorScope) -> Mapping[NoiseSource, float]:
        """Return the increase of every counter; none at the first call."""
        reading = scope.files.read(self._file)
        if reading.value is None:
            self.unavailable = reading.because
            return {}
        return self.increase(self._totals(reading.value, scope.cores))

    def increase(self, totals: Totals) -> dict[NoiseSource, float]:
        """Return the increase since the last call; empty for the first call."""
        before, self._before = self._before, totals
        if before is None:
            return {}
        increases = {source: total - before.get(source, 0.0) for source, total in totals.items()}
        return {source: increase for source, increase in increases.items() if increase > 0.0}


_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_STAT_COLUMNS: Final = {
    7: NoiseSource("steal", "the host"),
    5: NoiseSource("interrupt time", "interrupts"),
    6: NoiseSource("interrupt time", "soft interrupts"),
}
"""Column -> noise source. Some kernels add interrupt time to the interrupted process: then it is 0."""


def _processor_times(text: str, cores: tuple[int, ...]) -> Totals:
    """Return the time stolen by the host and used by interrupts: 1 s per core is all of 1 s."""
    totals = dict.fromkeys(_STAT_COLUMNS.values(), 0.0)
    labels = {f"cpu{core}" for core in cores}
    for line in text.splitlines():
        name, *ticks = line.split() or [""]
        if name in labels:
            for column, noise_source in _STAT_COLUMNS.items():
                count = "".join(ticks[column : column + 1])
                seconds = int(count) / _TICKS_PER_S if count.isdecimal() else 0.0
                totals[noise_source] += seconds / len(labels)
    return totals


ProcessorTime: Final = partial(CounterSource, "processor time", "proc/stat", _processor_times)


def busy_s(files: FileTree) -> float | None:
    """Return the CPU time of all processes since boot; None if it cannot be read."""
    times = processor_times(files)
    return sum(times[:3]) / _TICKS_PER_S if times else None  # user, nice and system


SHORT_LIVED: Final = "short-lived processes"
OURSELVES: Final = "Torchyard itself"
# kworker/0:1H-kblockd, ksoftirqd/1, kdamond.0, kswapd0: one name for all of a type.
_KERNEL_NUMBER: Final = re.compile(r"[/.:].*$|\d+$")


class ProcessTime:
    """CPU time of every other process."""

    name = "processes"

    def __init__(self) -> None:
        self.unavailable = ""
        self._before: dict[tuple[int, int], Task] | None = None
        self._busy_s: float | None = None

    def since_last(self, scope: MonitorScope) -> Mapping[NoiseSource, float]:
        """Return seconds by name; processes that ended in between appear only as a remainder."""
        now = dict(_processes(scope))
        busy = busy_s(scope.files)
        before, self._before = self._before, now
        busy_before, self._busy_s = self._busy_s, busy
        if not now:
            self.unavailable = "/proc shows no process"
            return {}
        if before is None:
            return {}
        parents = {pid: process.parent for (pid, _), process in now.items()}
        ours = {pid for pid in parents if _descends(pid, scope.own_pid, parents)}
        used: dict[NoiseSource, float] = defaultdict(float)
        all_s = 0.0
        for key, process in now.items():
            # A process that started since then used all of its time since then.
            ticks = process.cpu_ticks - (before[key].cpu_ticks if key in before else 0)
            used_s = ticks / _TICKS_PER_S
            if used_s <= 0.0:
                continue
            all_s += used_s
            pid = key[0]
            if pid == scope.own_pid:
                used[NoiseSource("torchyard", OURSELVES)] += used_s
            elif pid not in ours and (scope.everywhere or process.processor in scope.cores):
                kind, name = "process", process.name
                if process.of_kernel:
                    kind, name = "kernel thread", _KERNEL_NUMBER.sub("", name) or name
                used[NoiseSource(kind, name)] += used_s
        ended = before.keys() - now.keys()
        ours_ended = any(before[key].parent in ours for key in ended)
        if busy is not None and busy_before is not None and scope.everywhere and not ours_ended:
            remainder_s = busy - busy_before - all_s
            if ended and remainder_s > 0.0:
                used[NoiseSource("process", SHORT_LIVED)] += remainder_s
        return used


def _processes(scope: MonitorScope) -> Iterator[tuple[tuple[int, int], Task]]:
    """Yield all processes by PID and start time, because PIDs are reused."""
    for name in scope.files.names("proc"):
        process = read_task(scope.files, name) if name.isdecimal() else None
        if process is not None:  # otherwise it ended while it was read
            yield (process.number, process.start_ticks), process


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    visited = 0
    while pid and visited < len(parents):
        if pid == ancestor:
            return True
        pid = parents.get(pid, 0)
        visited += 1
    return False


# ITS-PCI-MSIX-0000:00:02.0   1 Edge   virtio1-req.0: the name follows the trigger.
_TRIGGER: Final = re.compile(r"\b(?:edge|level|fasteoi|percpu)\b\s*", re.IGNORECASE)
_OWN_WORK: Final = frozenset({"TIMER", "SCHED", "RCU", "HRTIMER"})
"""Soft interrupts that every running program causes."""


def _interrupt_counts(text: str, cores: tuple[int, ...]) -> Totals:
    """Return hardware interrupts by source, summed over the cores."""
    totals: Counter[NoiseSource] = Counter()
    for label, count, rest in _rows(text, cores):
        what = _named(label, rest)
        kind = "timer interrupt" if "timer" in what.lower() else "interrupt"
        totals[NoiseSource(kind, what)] += count
    return totals


def _soft_interrupt_counts(text: str, cores: tuple[int, ...]) -> Totals:
    """Return soft interrupts by type, such as network and disk, summed over the cores."""
    return {
        NoiseSource("soft interrupt", label): count
        for label, count, _ in _rows(text, cores)
        if label not in _OWN_WORK
    }


InterruptCounts: Final = partial(CounterSource, "interrupts", "proc/interrupts", _interrupt_counts)
SoftInterruptCounts: Final = partial(
    CounterSource, "soft interrupts", "proc/softirqs", _soft_interrupt_counts
)


def _rows(text: str, cores: tuple[int, ...]) -> Iterator[tuple[str, int, str]]:
    """Yield the label, the count on the cores, and the text after the counts."""
    lines = text.splitlines()
    columns = [word.removeprefix("CPU") for word in lines[0].split()] if lines else []
    labels = {str(core) for core in cores}
    for line in lines[1:]:
        label, colon, rest = line.strip().partition(":")
        words = rest.split(maxsplit=len(columns))
        counts = words[: len(columns)]
        if not colon or len(counts) < len(columns) or not all(map(str.isdecimal, counts)):
            continue  # ERR and MIS have one count for all CPUs
        count = sum(int(word) for name, word in zip(columns, counts, strict=True) if name in labels)
        yield label, count, words[len(columns)] if len(words) > len(columns) else ""


def _named(label: str, rest: str) -> str:
    """Return the device of a numbered interrupt, or the description of an architecture's own."""
    rest = " ".join(rest.split())
    if not label.isdecimal():
        return rest or label
    end = max((match.end() for match in _TRIGGER.finditer(rest)), default=-1)
    name = rest[end:] if end >= 0 else rest.rpartition(" ")[2]
    return name or f"interrupt {label}"


_WAITED_FOR: Final = {"cpu": "a core", "memory": "memory", "io": "a disk"}


class PressureTime(CounterSource):
    """Pressure stall time (PSI) of the whole machine."""

    def __init__(self) -> None:
        super().__init__("pressure", "proc/pressure", lambda _text, _cores: {})

    def since_last(self, scope: MonitorScope) -> Mapping[NoiseSource, float]:
        """Return seconds by resource."""
        totals: dict[NoiseSource, float] = {}
        because = ""
        for resource, what in _WAITED_FOR.items():
            reading = scope.files.read(f"{self._file}/{resource}")
            total_us = pressure(scope.files, resource).get("total", "")
            if total_us.isdecimal():
                totals[NoiseSource(f"waiting for {what}", "some process")] = int(total_us) / 1e6
            else:
                because = because or reading.because or f"/proc/pressure/{resource} has no total"
        if not totals:
            self.unavailable = because
        return self.increase(totals)


_SWAP: Final = NoiseSource("swap", "pages swapped")
_COUNTERS: Final = {
    "pgmigrate_success": NoiseSource("page moves", "pages migrated"),
    "numa_hint_faults": NoiseSource("page moves", "NUMA balancing faults"),
    "numa_pages_migrated": NoiseSource("page moves", "pages moved by NUMA balancing"),
    "thp_split_page": NoiseSource("page moves", "huge pages split"),
    "compact_migrate_scanned": NoiseSource("page moves", "pages scanned by compaction"),
    "pgscan_kswapd": NoiseSource("page moves", "pages scanned by kswapd"),
    "pgscan_direct": NoiseSource("page moves", "pages scanned by direct reclaim"),
    "pswpin": _SWAP,
    "pswpout": _SWAP,
}


def _page_moves(text: str, cores: tuple[int, ...]) -> Totals:  # noqa: ARG001
    """Return pages that the kernel migrated, scanned, split or swapped, on the whole machine."""
    totals: Counter[NoiseSource] = Counter()
    for line in text.splitlines():
        name, _, count = line.partition(" ")
        if name in _COUNTERS and count.isdecimal():
            totals[_COUNTERS[name]] += int(count)
    return totals


PageMoves: Final = partial(CounterSource, "page moves", "proc/vmstat", _page_moves)


SOURCES: Final[tuple[Callable[[], Source], ...]] = (
    ProcessTime,
    ProcessorTime,
    InterruptCounts,
    SoftInterruptCounts,
    PressureTime,
    PageMoves,
)


Unit = Literal["cores", "of the time", "per second"]


class Kind(NamedTuple):
    """One kind of disturbance."""

    unit: Unit
    limit: float
    """Amounts below are not reported; counts are per core. Chosen so that a quiet machine shows
    nothing and one percent of a core's time is reported; not tuned."""
    advice: str


_ISOLATE: Final = "isolate cores: `torchyard machine quiet --cores auto`"
_INTERRUPTS: Final = "`torchyard machine quiet --only interrupts --cores ...`"
_DEVICE_WORK: Final = "network or disk I/O: stop it, or keep its interrupts off the cores"
_MEMORY_PRESSURE: Final = "memory pressure: stop programs that use much memory"

KINDS: Final[dict[str, Kind]] = {
    "process": Kind("cores", 0.02, f"stop it while measuring, or {_ISOLATE}"),
    "kernel thread": Kind("cores", 0.01, f"work of the kernel; {_ISOLATE}"),
    "torchyard": Kind("cores", 0.05, "fewer processes make sampling cheaper"),
    "steal": Kind(
        "of the time",
        0.01,
        "other guests use the host: use a dedicated host, or measure at another time",
    ),
    "interrupt time": Kind("of the time", 0.01, f"keep interrupts off the cores: {_INTERRUPTS}"),
    "interrupt": Kind("per second", 1000.0, f"keep it off the cores: {_INTERRUPTS}"),
    "timer interrupt": Kind(
        "per second",
        1500.0,
        "more than the usual tick: timers of a program; nohz_full at boot stops the tick",
    ),
    "soft interrupt": Kind("per second", 1000.0, _DEVICE_WORK),
    "waiting for a core": Kind(
        "of the time",
        0.05,
        "more runnable threads than cores: stop programs, or measure with fewer threads",
    ),
    "waiting for memory": Kind("of the time", 0.01, _MEMORY_PRESSURE),
    "waiting for a disk": Kind("of the time", 0.20, "heavy disk I/O: stop it"),
    "page moves": Kind(
        "per second",
        500.0,
        "the kernel migrates or compacts memory: `torchyard machine quiet` stops NUMA balancing; "
        "free memory stops the rest",
    ),
    "swap": Kind("per second", 1.0, "memory pressure: stop programs"),
}

_KERNEL_THREADS: Final = {
    "kdamond": "the kernel's memory access monitor (DAMON): switch it off with the modules "
    "damon_reclaim, damon_lru_sort or with damo",
    "kswapd": _MEMORY_PRESSURE,
    "kcompactd": "memory compaction: free memory, or use huge pages only on request",
    "khugepaged": "it assembles huge pages: `torchyard machine quiet --thp madvise`",
    "ksoftirqd": _DEVICE_WORK,
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
