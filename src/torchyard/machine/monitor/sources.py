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


class Disturber(NamedTuple):
    """Who or what disturbs: a kind of `kinds.py`, and its name."""

    kind: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where to look."""

    files: FileTree
    cores: tuple[int, ...]
    """Logical processors that blocks run on."""
    everywhere: bool
    """Whether these are all processors there are, so that nobody can be elsewhere."""
    own_pid: int
    """The process whose descendants are measured: they disturb nobody."""


class Source(Protocol):
    """One kind of counters of the kernel."""

    @property
    def name(self) -> str:
        """As in `unavailable: pressure, because ...`."""

    @property
    def unavailable(self) -> str:
        """Why it counts nothing here; empty when it does. Known after the first question."""

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """What was added since the last call: seconds or counts; the first call is the start."""


class GrowingTotals:
    """Turns totals that only grow into what was added; one that fell began anew."""

    def __init__(self) -> None:
        self._before: Mapping[Disturber, float] | None = None

    def added(self, totals: Mapping[Disturber, float]) -> dict[Disturber, float]:
        """The difference to the last call, where there is one."""
        before, self._before = self._before, totals
        if before is None:
            return {}
        added: dict[Disturber, float] = {}
        for disturber, total in totals.items():
            more = total - before.get(disturber, 0.0)
            if more > 0.0:
                added[disturber] = more
        return added


_STAT: Final = "proc/stat"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_USER, _NICE, _SYSTEM = 1, 2, 3
_TAKEN: Final = {
    8: Disturber("steal", "the host"),
    6: Disturber("interrupt time", "interrupts"),
    7: Disturber("interrupt time", "soft interrupts"),
}
"""Column -> who took it. Some kernels count interrupts as time of the process they hit: then it is 0."""


class ProcessorTime:
    """Seconds taken from the cores, summed over them."""

    name = "processor time"

    def __init__(self) -> None:
        self.unavailable = ""
        self._totals = GrowingTotals()

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """Per core, so that 1 second in 1 second is all of the time."""
        found = scene.files.read(_STAT)
        if found.value is None:
            self.unavailable = found.because
            return {}
        totals = dict.fromkeys(_TAKEN.values(), 0.0)
        wanted = {f"cpu{core}" for core in scene.cores}
        for line in found.value.splitlines():
            fields = line.split()
            if fields and fields[0] in wanted:
                for column, disturber in _TAKEN.items():
                    totals[disturber] += _seconds(fields, column) / len(wanted)
        return self._totals.added(totals)


def busy_s(files: FileTree) -> float | None:
    """CPU time of all processes together since boot; None when it cannot be read."""
    fields = (files.read(_STAT).value or "").partition("\n")[0].split()
    if not fields or fields[0] != "cpu":
        return None
    return sum(_seconds(fields, column) for column in (_USER, _NICE, _SYSTEM))


def _seconds(fields: list[str], column: int) -> float:
    try:
        return int(fields[column]) / _TICKS_PER_S
    except (IndexError, ValueError):
        return 0.0


CAME_AND_WENT: Final = "processes that came and went"
OURSELVES: Final = "Torchyard itself"
_KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD of include/linux/sched.h."""

# kworker/0:1H-kblockd, ksoftirqd/1, kdamond.0, kswapd0: one name for all of a kind.
_KERNEL_NUMBER: Final = re.compile(r"[/.:].*$|\d+$")


@dataclass(frozen=True, kw_only=True)
class _Seen:
    name: str
    parent: int
    of_kernel: bool
    cpu_s: float
    processor: int


class ProcessTime:
    """What every other process used since the last look."""

    name = "processes"

    def __init__(self) -> None:
        self.unavailable = ""
        self._before: dict[tuple[int, int], _Seen] | None = None
        self._busy_s: float | None = None

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """Seconds by name; what ended between two looks is seen only as a remainder."""
        now = dict(_processes(scene))
        busy = busy_s(scene.files)
        before, self._before = self._before, now
        busy_before, self._busy_s = self._busy_s, busy
        if not now:
            self.unavailable = "/proc shows no process"
            return {}
        if before is None:
            return {}
        parents = {pid: seen.parent for (pid, _), seen in now.items()}
        ours = {pid for pid in parents if _descends(pid, scene.own_pid, parents)}
        used: dict[Disturber, float] = defaultdict(float)
        all_s = 0.0
        for key, seen in now.items():
            # A process that began since then has used everything since then.
            more = seen.cpu_s - (before[key].cpu_s if key in before else 0.0)
            if more <= 0.0:
                continue
            all_s += more
            pid = key[0]
            if pid == scene.own_pid:
                used[Disturber("torchyard", OURSELVES)] += more
            elif pid not in ours and (scene.everywhere or seen.processor in scene.cores):
                kind = "kernel thread" if seen.of_kernel else "process"
                used[Disturber(kind, _shown(seen))] += more
        ended = before.keys() - now.keys()
        ours_ended = any(before[key].parent in ours for key in ended)
        if busy is not None and busy_before is not None and scene.everywhere and not ours_ended:
            unseen = busy - busy_before - all_s
            if ended and unseen > 0.0:
                used[Disturber("process", CAME_AND_WENT)] += unseen
        return used


def _processes(scene: Scene) -> Iterator[tuple[tuple[int, int], _Seen]]:
    """By number and start, because numbers come again."""
    for name in scene.files.names("proc"):
        if not name.isdecimal():
            continue
        text = scene.files.read(f"proc/{name}/stat").value or ""
        # The name stands in brackets and may hold blanks and brackets itself.
        head, _, tail = text.rpartition(")")
        fields = tail.split()
        try:
            seen = _Seen(
                name=head.partition("(")[2],
                parent=int(fields[1]),
                of_kernel=bool(int(fields[6]) & _KERNEL_THREAD),
                cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
                processor=int(fields[36]),
            )
            start_ticks = int(fields[19])
        except (IndexError, ValueError):
            continue  # it ended while it was read
        yield (int(name), start_ticks), seen


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    visited = 0
    while pid and visited < len(parents):
        if pid == ancestor:
            return True
        pid = parents.get(pid, 0)
        visited += 1
    return False


def _shown(seen: _Seen) -> str:
    return (_KERNEL_NUMBER.sub("", seen.name) or seen.name) if seen.of_kernel else seen.name


# ITS-PCI-MSIX-0000:00:02.0   1 Edge   virtio1-req.0: the name follows the trigger.
_TRIGGER: Final = re.compile(r"\b(?:edge|level|fasteoi|percpu)\b\s*", re.IGNORECASE)
_OWN_WORK: Final = frozenset({"TIMER", "SCHED", "RCU", "HRTIMER"})
"""Soft interrupts that every running program causes by itself."""


class InterruptCounts:
    """How often each source interrupted the cores."""

    name = "interrupts"

    def __init__(self) -> None:
        self.unavailable = ""
        self._totals = GrowingTotals()

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """Counts, summed over the cores."""
        found = scene.files.read("proc/interrupts")
        if found.value is None:
            self.unavailable = found.because
            return {}
        totals: Counter[Disturber] = Counter()
        for label, count, rest in _rows(found.value, scene.cores):
            what = _named(label, rest)
            kind = "timer interrupt" if "timer" in what.lower() else "interrupt"
            totals[Disturber(kind, what)] += count
        return self._totals.added(totals)


class SoftInterruptCounts:
    """How often work of network, disk and others was done behind interrupts."""

    name = "soft interrupts"

    def __init__(self) -> None:
        self.unavailable = ""
        self._totals = GrowingTotals()

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """Counts, summed over the cores."""
        found = scene.files.read("proc/softirqs")
        if found.value is None:
            self.unavailable = found.because
            return {}
        totals: Counter[Disturber] = Counter()
        for label, count, _ in _rows(found.value, scene.cores):
            if label not in _OWN_WORK:
                totals[Disturber("soft interrupt", label)] += count
        return self._totals.added(totals)


def _rows(text: str, cores: tuple[int, ...]) -> Iterator[tuple[str, int, str]]:
    """Label, count on the cores, and what follows the counts."""
    lines = text.splitlines()
    columns = [word.removeprefix("CPU") for word in lines[0].split()] if lines else []
    wanted = {str(core) for core in cores}
    for line in lines[1:]:
        label, colon, rest = line.strip().partition(":")
        words = rest.split(maxsplit=len(columns))
        counts = words[: len(columns)]
        if not colon or len(counts) < len(columns) or not all(map(str.isdecimal, counts)):
            continue  # ERR and MIS have one count for all processors
        count = sum(int(word) for name, word in zip(columns, counts, strict=True) if name in wanted)
        yield label, count, words[len(columns)] if len(words) > len(columns) else ""


def _named(label: str, rest: str) -> str:
    """The device of a numbered interrupt; the words of an architecture's own."""
    rest = " ".join(rest.split())
    if not label.isdecimal():
        return rest or label
    end = max((match.end() for match in _TRIGGER.finditer(rest)), default=-1)
    name = rest[end:] if end >= 0 else rest.rpartition(" ")[2]
    return name or f"interrupt {label}"


_WAITED_FOR: Final = {"cpu": "a core", "memory": "memory", "io": "a disk"}


class PressureTime:
    """Seconds in which somebody waited, on the whole machine."""

    name = "pressure"

    def __init__(self) -> None:
        self.unavailable = ""
        self._totals = GrowingTotals()

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """By what was waited for."""
        totals: dict[Disturber, float] = {}
        because = ""
        for resource, what in _WAITED_FOR.items():
            found = scene.files.read(f"proc/pressure/{resource}")
            total_us = _total_us(found.value or "")
            if total_us is None:
                because = because or found.because or f"/proc/pressure/{resource} has no total"
            else:
                totals[Disturber(f"waiting for {what}", "some process")] = total_us / 1e6
        if not totals:
            self.unavailable = because
        return self._totals.added(totals)


def _total_us(text: str) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["some"] and words[-1].startswith("total="):
            total = words[-1].removeprefix("total=")
            return int(total) if total.isdecimal() else None
    return None


_SWAP: Final = Disturber("swap", "pages swapped")
_COUNTERS: Final = {
    "pgmigrate_success": Disturber("page moves", "pages migrated"),
    "numa_hint_faults": Disturber("page moves", "NUMA balancing faults"),
    "numa_pages_migrated": Disturber("page moves", "pages moved by NUMA balancing"),
    "thp_split_page": Disturber("page moves", "huge pages split"),
    "compact_migrate_scanned": Disturber("page moves", "pages scanned by compaction"),
    "pgscan_kswapd": Disturber("page moves", "pages scanned by kswapd"),
    "pgscan_direct": Disturber("page moves", "pages scanned for want of memory"),
    "pswpin": _SWAP,
    "pswpout": _SWAP,
}


class PageMoves:
    """Counts of the whole machine."""

    name = "page moves"

    def __init__(self) -> None:
        self.unavailable = ""
        self._totals = GrowingTotals()

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """By what was done to pages."""
        found = scene.files.read("proc/vmstat")
        if found.value is None:
            self.unavailable = found.because
            return {}
        totals: Counter[Disturber] = Counter()
        for line in found.value.splitlines():
            name, _, count = line.partition(" ")
            if name in _COUNTERS and count.isdecimal():
                totals[_COUNTERS[name]] += int(count)
        return self._totals.added(totals)


SOURCES: Final[tuple[Callable[[], Source], ...]] = (
    ProcessTime,
    ProcessorTime,
    InterruptCounts,
    SoftInterruptCounts,
    PressureTime,
    PageMoves,
)
