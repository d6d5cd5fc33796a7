"""Sources of disturbances: each reports how much happened since it was last asked.

CPU time of other processes and kernel threads, host steal and interrupt time, interrupts and soft
interrupts by source, pressure (PSI), and pages that the kernel moved, split, scanned or swapped.
A source knows nothing of time, threads and blocks. To add one, write a class, list it in
`SOURCES` and describe its kinds in `load_monitor.py`.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from torchyard.machine.system.file_tree import FileTree
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


class CounterSource:
    """Counters of one file that only grow; a counter that fell was reset."""

    name: str
    file: str

    def __init__(self) -> None:
        self.unavailable = ""
        self._before: Mapping[NoiseSource, float] | None = None

    def since_last(self, scope: MonitorScope) -> Mapping[NoiseSource, float]:
        """Return the increase of every counter; none at the first call."""
        reading = scope.files.read(self.file)
        if reading.value is None:
            self.unavailable = reading.because
            return {}
        return self.increase(self.totals(reading.value, scope.cores))

    def totals(self, text: str, cores: tuple[int, ...]) -> Mapping[NoiseSource, float]:
        """Parse the file."""
        raise NotImplementedError

    def increase(self, totals: Mapping[NoiseSource, float]) -> dict[NoiseSource, float]:
        """Return the increase since the last call; empty for the first call."""
        before, self._before = self._before, totals
        if before is None:
            return {}
        increases = {source: total - before.get(source, 0.0) for source, total in totals.items()}
        return {source: increase for source, increase in increases.items() if increase > 0.0}


_STAT: Final = "proc/stat"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_USER, _NICE, _SYSTEM = 1, 2, 3
_STAT_COLUMNS: Final = {
    8: NoiseSource("steal", "the host"),
    6: NoiseSource("interrupt time", "interrupts"),
    7: NoiseSource("interrupt time", "soft interrupts"),
}
"""Column -> noise source. Some kernels add interrupt time to the interrupted process: then it is 0."""


class ProcessorTime(CounterSource):
    """Time stolen by the host and used by interrupts, in seconds per core."""

    name = "processor time"
    file = _STAT

    def totals(self, text: str, cores: tuple[int, ...]) -> Mapping[NoiseSource, float]:
        """Return seconds per core: 1 s in 1 s is all of the time."""
        totals = dict.fromkeys(_STAT_COLUMNS.values(), 0.0)
        labels = {f"cpu{core}" for core in cores}
        for line in text.splitlines():
            fields = line.split()
            if fields and fields[0] in labels:
                for column, noise_source in _STAT_COLUMNS.items():
                    totals[noise_source] += _seconds(fields, column) / len(labels)
        return totals


def busy_s(files: FileTree) -> float | None:
    """Return the CPU time of all processes since boot; None if it cannot be read."""
    fields = files.read(_STAT).text.partition("\n")[0].split()
    if not fields or fields[0] != "cpu":
        return None
    return sum(_seconds(fields, column) for column in (_USER, _NICE, _SYSTEM))


def _seconds(fields: list[str], column: int) -> float:
    try:
        return int(fields[column]) / _TICKS_PER_S
    except (IndexError, ValueError):
        return 0.0


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
                kind = "kernel thread" if process.of_kernel else "process"
                used[NoiseSource(kind, _shown(process))] += used_s
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


def _shown(process: Task) -> str:
    if not process.of_kernel:
        return process.name
    return _KERNEL_NUMBER.sub("", process.name) or process.name


# ITS-PCI-MSIX-0000:00:02.0   1 Edge   virtio1-req.0: the name follows the trigger.
_TRIGGER: Final = re.compile(r"\b(?:edge|level|fasteoi|percpu)\b\s*", re.IGNORECASE)
_OWN_WORK: Final = frozenset({"TIMER", "SCHED", "RCU", "HRTIMER"})
"""Soft interrupts that every running program causes."""


class InterruptCounts(CounterSource):
    """Hardware interrupts by source, summed over the cores."""

    name = "interrupts"
    file = "proc/interrupts"

    def totals(self, text: str, cores: tuple[int, ...]) -> Mapping[NoiseSource, float]:
        """Return the counts of every source."""
        totals: Counter[NoiseSource] = Counter()
        for label, count, rest in _rows(text, cores):
            what = _named(label, rest)
            kind = "timer interrupt" if "timer" in what.lower() else "interrupt"
            totals[NoiseSource(kind, what)] += count
        return totals


class SoftInterruptCounts(CounterSource):
    """Soft interrupts by type, such as network and disk, summed over the cores."""

    name = "soft interrupts"
    file = "proc/softirqs"

    def totals(self, text: str, cores: tuple[int, ...]) -> Mapping[NoiseSource, float]:
        """Return the counts of every type."""
        rows = _rows(text, cores)
        return {
            NoiseSource("soft interrupt", label): count
            for label, count, _ in rows
            if label not in _OWN_WORK
        }


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

    name = "pressure"

    def since_last(self, scope: MonitorScope) -> Mapping[NoiseSource, float]:
        """Return seconds by resource."""
        totals: dict[NoiseSource, float] = {}
        because = ""
        for resource, what in _WAITED_FOR.items():
            reading = scope.files.read(f"proc/pressure/{resource}")
            total_us = _total_us(reading.value or "")
            if total_us is None:
                because = because or reading.because or f"/proc/pressure/{resource} has no total"
            else:
                totals[NoiseSource(f"waiting for {what}", "some process")] = total_us / 1e6
        if not totals:
            self.unavailable = because
        return self.increase(totals)


def _total_us(text: str) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["some"] and words[-1].startswith("total="):
            total = words[-1].removeprefix("total=")
            return int(total) if total.isdecimal() else None
    return None


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


class PageMoves(CounterSource):
    """Pages that the kernel migrated, scanned, split or swapped, on the whole machine."""

    name = "page moves"
    file = "proc/vmstat"

    def totals(self, text: str, cores: tuple[int, ...]) -> Mapping[NoiseSource, float]:  # noqa: ARG002
        """Return counts by operation."""
        totals: Counter[NoiseSource] = Counter()
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name in _COUNTERS and count.isdecimal():
                totals[_COUNTERS[name]] += int(count)
        return totals


SOURCES: Final[tuple[Callable[[], Source], ...]] = (
    ProcessTime,
    ProcessorTime,
    InterruptCounts,
    SoftInterruptCounts,
    PressureTime,
    PageMoves,
)
