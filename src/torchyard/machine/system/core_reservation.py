"""Which cores of this machine are reserved for the timed cell of a sweep, and whether any are.

Cells that prepare use the other cores while one is timed. That needs enough cores, and cells whose
processes may be moved. Otherwise preparing cells are paused while one is timed.

The CPU of one cell is not timed beside others unless the user reserves cores: cells would share caches,
memory bandwidth and the power that limits the clock, and no measurement shows yet that this does no harm.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from torchyard.core.cpu_lists import cpu_list
from torchyard.core.study import SCRIPT_SUITE, Study
from torchyard.errors import UsageError
from torchyard.machine.facts.isolation import quota_processors
from torchyard.machine.system.cores import Topology
from torchyard.machine.system.file_tree import FileTree

MIN_RESERVED: Final = 2
"""A training step uses two host threads: the program and the autograd engine."""
DEFAULT_RESERVED: Final = 4
RESERVED_SHARE: Final = 4
"""One of so many cores is reserved by default, between the two limits."""
MIN_PREPARING: Final = 2
"""Unless the user chooses the number of reserved cores."""
_BINDING: Final = (
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_HW_SUBSET",
)
"""Variables by which a process binds its own threads."""


@dataclass(frozen=True, kw_only=True)
class CoreReservation:
    """CPUs of the timed cell and of all others, or why none are reserved."""

    timed: tuple[int, ...] = ()
    preparing: tuple[int, ...] = ()
    why_not: str = ""

    @property
    def text(self) -> str:
        """What happens to other cells while one is timed."""
        if self.timed:
            return f"timed on CPUs {cpu_list(self.timed)}, prepared on {cpu_list(self.preparing)}"
        return f"others are paused while one is timed: {self.why_not}"


def reserve_cores(
    studies: Iterable[Study],
    *,
    at_most: int,
    requested: int | None = None,
    usable: Collection[int] | None = None,
    files: FileTree | None = None,
) -> CoreReservation:
    """Choose the cores for timing; `requested` is their number, 0 for none, None for the default.

    Raises UsageError if the requested number cannot be reserved.
    """
    files = FileTree() if files is None else files
    usable = sorted(os.sched_getaffinity(0) if usable is None else usable)
    if at_most == 1:
        return CoreReservation(why_not="there is one cell at a time")
    if requested == 0:
        return CoreReservation(why_not="no cores are reserved")
    chosen = list(studies)
    reservation = _choose(chosen, requested, usable, files)
    if requested and reservation.why_not:
        raise UsageError(
            f"cannot reserve {requested} cores: {reservation.why_not}",
            hint="use --reserve-cores 0 to pause other cells while one is timed",
        )
    return reservation


def _choose(
    studies: Collection[Study], requested: int | None, usable: Collection[int], files: FileTree
) -> CoreReservation:
    threads = 0
    for study in studies:
        why_not, needed = _needs(study, is_requested=requested is not None)
        if why_not:
            return CoreReservation(why_not=why_not)
        threads = max(threads, needed)
    quota = quota_processors(files).value
    if quota not in (None, "all") and float(str(quota)) < len(usable):
        return CoreReservation(why_not=f"a quota of {quota} CPUs applies to all cells together")
    default = min(DEFAULT_RESERVED, max(MIN_RESERVED, len(usable) // RESERVED_SHARE))
    count = requested or max(default, threads)
    if count < threads:
        return CoreReservation(why_not=f"cells use {threads} threads")
    timed = _whole_cores(Topology.read(files), usable, count)
    preparing = tuple(cpu for cpu in usable if cpu not in timed)
    remaining = 1 if requested else MIN_PREPARING
    if len(preparing) < remaining:
        return CoreReservation(
            why_not=f"{len(usable)} cores are too few: timing needs {count}, and other cells {remaining}"
        )
    return CoreReservation(timed=timed, preparing=preparing)


def _needs(study: Study, *, is_requested: bool) -> tuple[str, int]:
    """Return why processes of a study cannot be moved to reserved cores, and their number of threads."""
    for variant in study.variants:
        environment = variant.environment
        bound = [name for name, _ in environment.variables if name in _BINDING]
        bound += [name for name in _BINDING if name in os.environ]
        if environment.cores or environment.memory or environment.instances > 1 or bound:
            return f"processes of {variant.name} are bound to cores", 0
    for workload in study.workloads:
        if workload.suite == SCRIPT_SUITE or workload.ranks > 1:
            return f"{workload.label} has processes of its own", 0
        if workload.device == "cpu" and not is_requested:
            return "cells on the CPU share caches and memory bandwidth with others", 0
    threads = [variant.environment.threads or 0 for variant in study.variants]
    return "", max(study.settings.threads or 0, *threads)


def _whole_cores(topology: Topology, usable: Collection[int], count: int) -> tuple[int, ...]:
    """Return at least `count` CPUs with all SMT siblings, the last ones: CPU 0 does work of the kernel."""
    timed: list[int] = []
    for core in sorted(topology.physical, reverse=True):
        if len(timed) >= count:
            break
        timed += [cpu for cpu in core if cpu in usable]
    return tuple(sorted(timed))
