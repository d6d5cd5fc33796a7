"""Estimate the time, disk and memory of a sweep as ranges, each with its source.

Recorded runs on this machine come first, then a calibration; without either, only the bound set by
the budget is given. Recorded runs count if they have the same workloads and variants on the same
machine: the index is asked first, and only the newest run folders are opened. Changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from torchyard.bench.target_checks import inspect_target
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.records import encode
from torchyard.core.study import Budget
from torchyard.errors import ResultsDamaged
from torchyard.machine.facts.run_facts import read_facts
from torchyard.machine.identity import machine_name
from torchyard.machine.limits import read_limits
from torchyard.process.ending import WorkerTrouble
from torchyard.results.index.store import Store
from torchyard.results.model import Wanted
from torchyard.results.run_reader import Run, read_run
from torchyard.sweep.model import Cell, SweepLimits, SweepPlan

EstimateSource = Literal["history", "calibration", "budget"]
MemoryKind = Literal["worker_bytes", "tensor_bytes", "device_bytes"]

FIRST_LAUNCHES: Final = 8
"""Into how many launches `measure.pacing` cuts the time before it knows better."""
OVERTIME: Final = 2.0
"""A session that has not made its first launches may take twice its time (`measure.pacing`)."""
BYTES_PER_S: Final = (3_000.0, 20_000.0)
"""What a candidate's blocks need on disk per second of measuring, where no run tells. Four runs on
a slow machine needed 4300 to 6000; blocks of 0.1 s, at 1400 to 1800 bytes, back to back set the end."""
BYTES_PER_CELL: Final = 20_000.0
"""Facts, launches and logs."""
COPIES: Final = 2
"""What cells hold is copied into the joined run, and both are kept."""
SIZE_SPREAD: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Range:
    """Between these."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(low=self.low + other.low, high=self.high + other.high)

    def times(self, factor: float) -> Range:
        """Both ends."""
        return Range(low=self.low * factor, high=self.high * factor)


NOTHING: Final = Range(low=0.0, high=0.0)


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a cell before it runs; None where nothing is."""

    source: EstimateSource
    time_s: Range | None = None
    size_bytes: float | None = None
    worker_bytes: int | None = None
    """Most memory of a process that built it and ran one iteration."""
    tensor_bytes: int | None = None
    """Of tensors alive in one iteration: less than its process needs."""
    device_bytes: int | None = None
    """The same on a GPU."""
    compiling_unknown: bool = False
    """Whether the time is without compiling."""
    unsupported: str = ""
    """Why the workload cannot be built or run, as a calibration found."""


@dataclass(frozen=True, kw_only=True)
class CellEstimate:
    """One cell: what it should take, and how that is known."""

    cell: str
    label: str
    source: EstimateSource
    time_s: Range
    """With source `budget` only measuring: starting and compiling are not known."""
    worker_bytes: int | None = None
    tensor_bytes: int | None = None
    device_bytes: int | None = None
    compiling_unknown: bool = False
    unsupported: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepEstimate:
    """The whole shard."""

    cells: tuple[CellEstimate, ...]
    at_a_time: int | None = 1
    """Cells that are timed side by side; None when a cluster decides."""
    together: int = 1
    """Cells under way on this machine, of which one is timed."""
    size_bytes: Range = NOTHING
    size_source: Literal["history", "guess"] = "guess"
    free_bytes: int | None = None
    machine_bytes: int | None = None
    """Memory of this machine, or of its control group; None when cells run elsewhere."""
    limit_bytes: int | None = None
    """What one worker may use."""

    @property
    def time_s(self) -> Range:
        """One cell after the other, divided by how many run side by side."""
        total = sum((cell.time_s for cell in self.cells), start=NOTHING)
        return total.times(1.0 / (self.at_a_time or 1))

    def largest(self, kind: MemoryKind) -> tuple[int, CellEstimate] | None:
        """The cell that needs most of that memory, among those of which it is known."""
        known = [(getattr(cell, kind), cell) for cell in self.cells if getattr(cell, kind)]
        return max(known, key=lambda item: int(item[0]), default=None)

    def count(self, source: EstimateSource) -> int:
        """How many cells are estimated from there."""
        return sum(cell.source == source for cell in self.cells)

    def expected_s(self) -> dict[str, float]:
        """The middle of each cell's range, for whoever shows what is left."""
        return {cell.cell: (cell.time_s.low + cell.time_s.high) / 2 for cell in self.cells}

    def too_large(self) -> list[CellEstimate]:
        """Cells whose worker needs more than it may use, or than there is."""
        bounds = [bound for bound in (self.machine_bytes, self.limit_bytes) if bound is not None]
        if not bounds:
            return []
        return [
            cell
            for cell in self.cells
            if max(cell.worker_bytes or 0, cell.tensor_bytes or 0) > min(bounds)
        ]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the machine says: read by the caller, so that an estimate is arithmetic."""

    free_bytes: int | None = None
    machine_bytes: int | None = None


def estimate_sweep(
    plan: SweepPlan,
    known: Sequence[Mapping[str, Known]] = (),
    *,
    surroundings: Surroundings | None = None,
) -> SweepEstimate:
    """The estimate of a plan; `known` by cell id, the best source first."""
    here = surroundings or Surroundings()
    local = plan.executor.name == "local"
    cells = [
        _cell(cell, [source[cell.id] for source in known if cell.id in source], plan.limits)
        for cell in plan.cells
    ]
    size_bytes, from_history = _size(plan, known)
    return SweepEstimate(
        cells=tuple(cells),
        at_a_time=1 if local else _at_most(plan),
        together=(_at_most(plan) or 1) if local else 1,
        size_bytes=size_bytes,
        size_source="history" if from_history else "guess",
        free_bytes=here.free_bytes,
        machine_bytes=here.machine_bytes if local else None,
        limit_bytes=_most(cell.study.settings.memory_limit_bytes for cell in plan.cells),
    )


def measuring_s(budget: Budget, *, start_s: float | None = None) -> Range:
    """How long a cell measures: from the first look that may decide to the whole time.

    `start_s` is what it takes to start a launch, where that is known: the first launches are made
    however long that takes, up to twice the time.
    """
    least = max(1, min(budget.min_launches, budget.max_launches))
    bound_s = budget.time_s * OVERTIME
    share_s = max(1.0, budget.time_s / min(budget.max_launches, FIRST_LAUNCHES))
    early_s = min(budget.time_s, least * share_s)
    if budget.precision_goal <= 0 or budget.max_launches == 1:
        early_s = budget.time_s
    if start_s is None:
        return Range(low=early_s, high=bound_s)
    started_s = (least - 1) * start_s
    return Range(
        low=max(early_s, min(started_s, max(bound_s, start_s))),
        high=min(bound_s, max(budget.time_s, started_s + least * share_s)) + start_s,
    )


def _cell(cell: Cell, known: Sequence[Known], limits: SweepLimits) -> CellEstimate:
    timed = next((one for one in known if one.time_s is not None), None)
    time_s = timed.time_s if timed is not None else None
    if time_s is None:
        time_s = measuring_s(cell.study.budget)
    if limits.cell_s is not None:
        most_s = limits.cell_s * limits.tries
        time_s = Range(low=min(time_s.low, most_s), high=min(time_s.high, most_s))
    return CellEstimate(
        cell=cell.id,
        label=cell.label,
        source="budget" if timed is None else timed.source,
        time_s=time_s,
        worker_bytes=_most(one.worker_bytes for one in known),
        tensor_bytes=_most(one.tensor_bytes for one in known),
        device_bytes=_most(one.device_bytes for one in known),
        compiling_unknown=timed is None or timed.compiling_unknown,
        unsupported=next((one.unsupported for one in known if one.unsupported), ""),
    )


def _most(amounts: Iterable[int | None]) -> int | None:
    return max((amount for amount in amounts if amount is not None), default=None)


def _at_most(plan: SweepPlan) -> int | None:
    number = str(dict(plan.executor.options).get("at-most", ""))
    return int(number) if number.isdecimal() else None


def _size(plan: SweepPlan, known: Sequence[Mapping[str, Known]]) -> tuple[Range, bool]:
    """Of all cells and of the runs they are joined into; a cell of unknown size is as the others."""
    found = {
        cell: one.size_bytes
        for source in reversed(known)
        for cell, one in source.items()
        if one.size_bytes is not None
    }
    if not found:
        return sum((_guessed_bytes(cell) for cell in plan.cells), start=NOTHING), False
    usual = sum(found.values()) / len(found)
    total = sum(found.get(cell.id, usual) for cell in plan.cells) * COPIES
    return Range(low=total / SIZE_SPREAD, high=total * SIZE_SPREAD), True


def _guessed_bytes(cell: Cell) -> Range:
    time_s, count = measuring_s(cell.study.budget), len(cell.study.candidates)
    low, high = (
        (BYTES_PER_CELL + rate * duration_s * count) * COPIES
        for rate, duration_s in zip(BYTES_PER_S, (time_s.low, time_s.high), strict=True)
    )
    return Range(low=low, high=high)


NEWEST: Final = 3
"""Runs that are opened for one cell at most."""
SPREAD: Final = 1.5
"""One earlier time says this little of the next: measuring stops when it is sure, which is chance."""
DECIDED: Final = frozenset({Verdict.FASTER, Verdict.SLOWER, Verdict.SAME})

LATER_SHARE: Final = 0.3
"""Of the first start, which compiled and checked as well, as `measure.pacing` guesses it."""

Names = tuple[str, str, str]
"""Label of the workload, baseline, candidate."""
Starts = tuple[float, float | None]
"""Of the first launch and of the slowest later one."""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """One cell in one earlier run."""

    measured_s: float
    first_start_s: float
    """With compiling and checking."""
    later_start_s: float
    decided: bool
    same_budget: bool
    size_bytes: float
    tensor_bytes: int | None


@dataclass
class _Folders:
    """Run folders that were opened, each once."""

    store: Store
    _runs: dict[str, Run | None] = field(default_factory=dict)
    _starts: dict[str, Mapping[str, Starts]] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)

    def run(self, run_id: str) -> Run | None:
        """The run, or None where it cannot be read."""
        if run_id not in self._runs:
            try:
                self._runs[run_id] = read_run(self.store.home / run_id)
            except ResultsDamaged:
                self._runs[run_id] = None
        return self._runs[run_id]

    def starts_s(self, run: Run, label: str) -> tuple[float, float]:
        """How long the first launch of a workload took to be ready, and the slowest later one."""
        if run.id not in self._starts:
            self._starts[run.id] = _starts_of(run)
        first_s, later_s = self._starts[run.id].get(label, (0.0, None))
        return first_s, LATER_SHARE * first_s if later_s is None else later_s

    def size_bytes(self, run: Run) -> int:
        """Everything in the folder."""
        if run.id not in self._sizes:
            self._sizes[run.id] = _folder_bytes(run.folder)
        return self._sizes[run.id]


def known_from_runs(plan: SweepPlan, store: Store, *, machine: str) -> dict[str, Known]:
    """By cell, where a kept run has the same workload and variants; `machine` "" means any."""
    runs_of = _runs_by_names(plan, store, machine)
    folders = _Folders(store)
    found: dict[str, Known] = {}
    for cell in plan.cells:
        names = _names(cell)
        run_ids = dict.fromkeys(run for name in names for run in runs_of.get(name, ()))
        seen = [
            one
            for run_id in sorted(run_ids, reverse=True)[:NEWEST]
            if (one := _seen(cell, run_id, folders)) is not None
        ]
        if seen:
            found[cell.id] = _known(cell, seen)
    return found


def compile_ranges(plan: SweepPlan, store: Store, *, machine: str) -> dict[str, Range]:
    """Cold compile times of candidates on any workload, by the candidate's name."""
    found: dict[str, Range] = {}
    for candidate in {one.name for cell in plan.cells for one in cell.study.candidates}:
        entries = store.comparisons(Wanted(machine=machine, candidate=candidate))
        times = [
            entry.compile_s
            for entry in entries
            if entry.compile_s is not None and entry.candidate == candidate
        ]
        if times:
            found[candidate] = Range(low=min(times), high=max(times))
    return found


def machine_of_plan(plan: SweepPlan) -> str:
    """The name that runs of this sweep will have as their machine; "" when it is not this one.

    On a GPU its model is a part of the name, and only torch knows that: one worker is asked.
    """
    if plan.executor.name != "local":
        return ""
    workloads = [cell.study.workloads[0] for cell in plan.cells]
    info: dict[str, object] = {
        "machine": read_facts(),
        "study": {"workloads": [encode(workload) for workload in workloads]},
    }
    if any(workload.device != "cpu" for workload in workloads):
        target = plan.cells[0].study.baseline.target
        try:
            info["targets"] = {target.name: inspect_target(target)}
        except WorkerTrouble:
            return ""
    return machine_name(info)


def read_surroundings(folder: Path) -> Surroundings:
    """Free space where the sweep will lie, and memory of this machine or its control group."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free_bytes: int | None = shutil.disk_usage(place).free
    except OSError:
        free_bytes = None
    total_bytes = read_limits().total_mib << 20
    return Surroundings(free_bytes=free_bytes, machine_bytes=total_bytes or None)


def _names(cell: Cell) -> list[Names]:
    study = cell.study
    label = study.workloads[0].label
    return [(label, study.baseline.name, candidate.name) for candidate in study.candidates]


def _runs_by_names(plan: SweepPlan, store: Store, machine: str) -> dict[Names, list[str]]:
    """Runs that hold a comparison which is not failed, one question per pair of variants."""
    pairs = {
        (baseline, candidate) for cell in plan.cells for _, baseline, candidate in _names(cell)
    }
    found: dict[Names, list[str]] = {}
    for baseline, candidate in sorted(pairs):
        wanted = Wanted(machine=machine, baseline=baseline, candidate=candidate)
        for entry in store.comparisons(wanted):
            names = (entry.workload, entry.baseline, entry.candidate)
            if entry.verdict is not Verdict.FAILED:
                found.setdefault(names, []).append(entry.run)
    return found


def _seen(cell: Cell, run_id: str, folders: _Folders) -> _Seen | None:
    run = folders.run(run_id)
    if run is None:
        return None
    label = cell.study.workloads[0].label
    names = set(_names(cell))
    rows = [
        row
        for row in run.comparisons
        if (row.workload.label, row.baseline, row.candidate) in names and row.failure is None
    ]
    if not rows:
        return None
    workloads = max(1, len({row.workload.label for row in run.comparisons}))
    first_s, later_s = folders.starts_s(run, label)
    return _Seen(
        measured_s=max(row.elapsed_s for row in rows),
        first_start_s=first_s,
        later_start_s=later_s,
        decided=len(rows) == len(names) and all(row.verdict in DECIDED for row in rows),
        same_budget=run.study.budget == cell.study.budget,
        size_bytes=folders.size_bytes(run) / workloads,
        tensor_bytes=_tensor_bytes(rows),
    )


def _known(cell: Cell, seen: Sequence[_Seen]) -> Known:
    """From earlier times to a range; where the earlier run had to stop, the budget is the end."""
    ends: list[tuple[float, float]] = []
    for one in seen:
        allowed_s = measuring_s(cell.study.budget, start_s=one.later_start_s).high
        measured_s = one.measured_s if one.same_budget else min(one.measured_s, allowed_s)
        took_s = one.first_start_s + measured_s
        most_s = took_s * SPREAD
        if not (one.same_budget and one.decided):
            most_s = max(most_s, one.first_start_s * SPREAD + allowed_s)
        ends.append((took_s / SPREAD, most_s))
    on_cpu = cell.study.workloads[0].device == "cpu"
    tensors = max((one.tensor_bytes for one in seen if one.tensor_bytes), default=None)
    return Known(
        source="history",
        time_s=Range(low=min(low for low, _ in ends), high=max(high for _, high in ends)),
        size_bytes=max(one.size_bytes for one in seen),
        tensor_bytes=tensors if on_cpu else None,
        device_bytes=None if on_cpu else tensors,
    )


def _starts_of(run: Run) -> dict[str, Starts]:
    """By the label of the workload."""
    try:
        records = run.launches()
    except ResultsDamaged:
        return {}
    found: dict[str, dict[bool, list[float]]] = {}
    for record in records:
        kinds = found.setdefault(str(record.get("workload")), {})
        kinds.setdefault(record.get("launch") == 0, []).append(float(record.get("start_s") or 0.0))
    return {
        label: (max(kinds.get(True, [0.0])), max(kinds[False]) if False in kinds else None)
        for label, kinds in found.items()
    }


def _tensor_bytes(rows: Sequence[Comparison]) -> int | None:
    peaks = [
        metrics.peak_memory_bytes
        for row in rows
        for metrics in (row.baseline_metrics, row.candidate_metrics)
        if metrics.peak_memory_bytes is not None
    ]
    return max(peaks, default=None)


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total
