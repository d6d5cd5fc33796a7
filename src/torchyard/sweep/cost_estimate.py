"""Estimate the time, disk and memory of a sweep as ranges, each with its source.

Recorded runs on this machine have priority, then a calibration; without either, only the bound set
by the budget is given. A recorded run counts if it has the same workload and variants on the same
machine. The index is queried first, and only the newest run folders are opened. Read-only.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, Literal

from torchyard.bench.pacing import LATER_START_SHARE, OVERTIME, SHORTEST_S, is_count_fixed
from torchyard.bench.target_checks import inspect_target
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.records import encode
from torchyard.core.study import Budget
from torchyard.errors import ResultsDamaged
from torchyard.machine.facts.run_facts import read_facts
from torchyard.machine.identity import machine_name
from torchyard.machine.limits import read_limits
from torchyard.process.ending import WorkerFailure
from torchyard.results.index.store import Store
from torchyard.results.model import RunFilter
from torchyard.results.run_reader import Run, read_run
from torchyard.sweep.model import Cell, SweepLimits, SweepPlan

EstimateSource = Literal["history", "calibration", "budget"]
MemoryKind = Literal["worker_bytes", "tensor_bytes", "device_bytes"]

BYTES_PER_S: Final = (3_000.0, 20_000.0)
"""Disk space of a candidate's blocks per second of measuring, used without a recorded run. Four runs
on a slow machine needed 4300 to 6000; back-to-back blocks of 0.1 s, 1400 to 1800 bytes each, set the
upper bound."""
BYTES_PER_CELL: Final = 20_000.0
"""Disk space of machine facts, launches and logs."""
COPIES: Final = 2
"""The data of cells is copied into the joined run, and both are kept."""
SIZE_SPREAD: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range of durations or sizes."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(low=self.low + other.low, high=self.high + other.high)

    def times(self, factor: float) -> Range:
        """Scale both ends."""
        return Range(low=self.low * factor, high=self.high * factor)


ZERO_RANGE: Final = Range(low=0.0, high=0.0)


@dataclass(frozen=True, kw_only=True)
class KnownCost:
    """Costs of a cell known before it runs, from one source; None where unknown."""

    source: EstimateSource
    time_s: Range | None = None
    size_bytes: float | None = None
    worker_bytes: int | None = None
    """Peak memory of a process that built the workload and ran one iteration."""
    tensor_bytes: int | None = None
    """Peak memory of tensors in one iteration: less than the process needs."""
    device_bytes: int | None = None
    """Peak GPU memory of tensors in one iteration."""
    first_launch_s: float | None = None
    """Wall time from the start of the cell to the end of its first launch."""
    compiling_unknown: bool = False
    """Whether `time_s` excludes compilation."""
    unsupported: str = ""
    """Why the workload cannot be built or run, according to a calibration."""


@dataclass(frozen=True, kw_only=True)
class CellEstimate:
    """The estimated cost of one cell and the source of the estimate."""

    cell: str
    label: str
    source: EstimateSource
    time_s: Range
    """With source `budget`, only measuring: startup and compilation are unknown."""
    first_launch_s: float | None = None
    """Wall time from the start of the cell to the end of its first launch; None: unknown."""
    worker_bytes: int | None = None
    tensor_bytes: int | None = None
    device_bytes: int | None = None
    compiling_unknown: bool = False
    unsupported: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepEstimate:
    """The estimated cost of a shard."""

    cells: tuple[CellEstimate, ...]
    at_a_time: int | None = 1
    """Cells that are timed concurrently; None if a cluster decides."""
    together: int = 1
    """Concurrent cells on this machine, one of which is timed."""
    size_bytes: Range = ZERO_RANGE
    size_source: Literal["history", "guess"] = "guess"
    free_bytes: int | None = None
    machine_bytes: int | None = None
    """Memory of this machine, or of its control group; None if cells run elsewhere."""
    limit_bytes: int | None = None
    """Memory limit of one worker."""

    @property
    def time_s(self) -> Range:
        """Return the sum over all cells, divided by the number of concurrent cells."""
        total = sum((cell.time_s for cell in self.cells), start=ZERO_RANGE)
        return total.times(1.0 / (self.at_a_time or 1))

    def largest(self, kind: MemoryKind) -> tuple[int, CellEstimate] | None:
        """Return the cell that needs the most memory of that kind, where known."""
        sizes = [(getattr(cell, kind), cell) for cell in self.cells if getattr(cell, kind)]
        return max(sizes, key=lambda item: int(item[0]), default=None)

    def count(self, source: EstimateSource) -> int:
        """Return how many cells are estimated from that source."""
        return sum(cell.source == source for cell in self.cells)

    def expected_s(self) -> dict[str, float]:
        """Return the middle of each cell's time range, for the remaining time in progress output."""
        return {cell.cell: (cell.time_s.low + cell.time_s.high) / 2 for cell in self.cells}

    def first_launch_s(self) -> dict[str, float]:
        """Return the expected durations of first launches, where known."""
        return {
            one.cell: one.first_launch_s for one in self.cells if one.first_launch_s is not None
        }

    def first_pass_s(self) -> float | None:
        """Return the wall time of one launch of each cell; None if no cell is known.

        A cell without a recorded run counts with the mean of the others.
        """
        known = self.first_launch_s().values()
        return sum(known) / len(known) * len(self.cells) if known else None

    def too_large(self) -> list[CellEstimate]:
        """Return the cells whose worker needs more memory than allowed or available."""
        bounds = [bound for bound in (self.machine_bytes, self.limit_bytes) if bound is not None]
        if not bounds:
            return []
        return [
            cell
            for cell in self.cells
            if max(cell.worker_bytes or 0, cell.tensor_bytes or 0) > min(bounds)
        ]


@dataclass(frozen=True, kw_only=True)
class MachineResources:
    """Free disk space and memory of this machine, read by the caller."""

    free_bytes: int | None = None
    machine_bytes: int | None = None


def estimate_sweep(
    plan: SweepPlan,
    costs: Sequence[Mapping[str, KnownCost]] = (),
    *,
    resources: MachineResources | None = None,
) -> SweepEstimate:
    """Estimate the cost of a plan; `costs` are by cell id, the best source first."""
    machine = resources or MachineResources()
    local = plan.executor.name == "local"
    cells = [
        _cell(cell, [source[cell.id] for source in costs if cell.id in source], plan.limits)
        for cell in plan.cells
    ]
    size_bytes, from_history = _size(plan, costs)
    return SweepEstimate(
        cells=tuple(cells),
        at_a_time=1 if local else _at_most(plan),
        together=(_at_most(plan) or 1) if local else 1,
        size_bytes=size_bytes,
        size_source="history" if from_history else "guess",
        free_bytes=machine.free_bytes,
        machine_bytes=machine.machine_bytes if local else None,
        limit_bytes=_most(cell.study.settings.memory_limit_bytes for cell in plan.cells),
    )


def measuring_s(budget: Budget, *, start_s: float | None = None) -> Range:
    """Return how long a cell measures: from the first possible decision to the whole budget.

    `start_s` is the startup time of a launch, where known. The earliest decision is after
    `min_launches` launches of the shortest length. An explicit number of launches is completed even
    if that takes up to twice the budget.
    """
    least = max(1, min(budget.min_launches, budget.max_launches))
    is_fixed = is_count_fixed(budget)
    bound_s = budget.time_s * (OVERTIME if is_fixed else 1.0)
    early_s = min(budget.time_s, least * max(SHORTEST_S, budget.launch_s or 0.0))
    if budget.precision_goal <= 0 or budget.max_launches == 1:
        early_s = budget.time_s
    if start_s is None:
        return Range(low=early_s, high=bound_s)
    return Range(low=min(bound_s, early_s + (least - 1) * start_s), high=bound_s + start_s)


def _cell(cell: Cell, costs: Sequence[KnownCost], limits: SweepLimits) -> CellEstimate:
    timed = next((one for one in costs if one.time_s is not None), None)
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
        worker_bytes=_most(one.worker_bytes for one in costs),
        tensor_bytes=_most(one.tensor_bytes for one in costs),
        device_bytes=_most(one.device_bytes for one in costs),
        first_launch_s=next(
            (one.first_launch_s for one in costs if one.first_launch_s is not None), None
        ),
        compiling_unknown=timed is None or timed.compiling_unknown,
        unsupported=next((one.unsupported for one in costs if one.unsupported), ""),
    )


def _most(amounts: Iterable[int | None]) -> int | None:
    return max((amount for amount in amounts if amount is not None), default=None)


def _at_most(plan: SweepPlan) -> int | None:
    number = str(dict(plan.executor.options).get("at-most", ""))
    return int(number) if number.isdecimal() else None


def _size(plan: SweepPlan, costs: Sequence[Mapping[str, KnownCost]]) -> tuple[Range, bool]:
    """Return the size of all cells and joined runs, and whether it is from recorded runs.

    A cell of unknown size counts with the mean of the others.
    """
    sizes = {
        cell: one.size_bytes
        for source in reversed(costs)
        for cell, one in source.items()
        if one.size_bytes is not None
    }
    if not sizes:
        return sum((_guessed_bytes(cell) for cell in plan.cells), start=ZERO_RANGE), False
    mean = sum(sizes.values()) / len(sizes)
    total = sum(sizes.get(cell.id, mean) for cell in plan.cells) * COPIES
    return Range(low=total / SIZE_SPREAD, high=total * SIZE_SPREAD), True


def _guessed_bytes(cell: Cell) -> Range:
    time_s, count = measuring_s(cell.study.budget), len(cell.study.candidates)
    low, high = (
        (BYTES_PER_CELL + rate * duration_s * count) * COPIES
        for rate, duration_s in zip(BYTES_PER_S, (time_s.low, time_s.high), strict=True)
    )
    return Range(low=low, high=high)


MAX_RUNS_PER_CELL: Final = 3
"""The newest runs that are opened for one cell."""
SPREAD: Final = 1.5
"""Factor between the time of an earlier run and the next one: when measuring stops is random."""
DECIDED: Final = frozenset({Verdict.FASTER, Verdict.SLOWER, Verdict.SAME})

CONTROLLER_S: Final = 1.5
"""Start of a cell's own process, and the end of the worker processes of a launch."""

Names = tuple[str, str, str]
"""Label of the workload, baseline, candidate."""
Starts = tuple[float, float | None, float]
"""Startup times of the first launch and of the slowest later one, and the measuring time of the first,
in seconds."""


@dataclass(frozen=True, kw_only=True)
class _EarlierRun:
    """Costs of one cell in one earlier run."""

    measured_s: float
    first_start_s: float
    """Including compilation and the accuracy check."""
    later_start_s: float
    launch_s: float
    """Measuring time of its first launch, including the check after it."""
    decided: bool
    same_budget: bool
    size_bytes: float
    tensor_bytes: int | None


@dataclass
class _RunCache:
    """Opened run folders; each one is read once."""

    store: Store
    _runs: dict[str, Run | None] = field(default_factory=dict)
    _starts: dict[str, Mapping[str, Starts]] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)

    def run(self, run_id: str) -> Run | None:
        """Return the run, or None if it cannot be read."""
        if run_id not in self._runs:
            try:
                self._runs[run_id] = read_run(self.store.home / run_id)
            except ResultsDamaged:
                self._runs[run_id] = None
        return self._runs[run_id]

    def starts_s(self, run: Run, label: str) -> tuple[float, float, float]:
        """Return the startup times of a workload's first launch and of its slowest later one.

        The third number is the measuring time of the first launch.
        """
        if run.id not in self._starts:
            self._starts[run.id] = _starts_of(run)
        first_s, later_s, launch_s = self._starts[run.id].get(label, (0.0, None, 0.0))
        return first_s, LATER_START_SHARE * first_s if later_s is None else later_s, launch_s

    def size_bytes(self, run: Run) -> int:
        """Return the size of the run folder."""
        if run.id not in self._sizes:
            self._sizes[run.id] = _folder_bytes(run.folder)
        return self._sizes[run.id]


def costs_from_runs(plan: SweepPlan, store: Store, *, machine: str) -> dict[str, KnownCost]:
    """Return known costs by cell id, from recorded runs with the same workload and variants.

    An empty `machine` means any machine.
    """
    run_ids_by_names = _runs_by_names(plan, store, machine)
    runs = _RunCache(store)
    costs: dict[str, KnownCost] = {}
    for cell in plan.cells:
        names = _names(cell)
        run_ids = dict.fromkeys(run for name in names for run in run_ids_by_names.get(name, ()))
        earlier = [
            one
            for run_id in sorted(run_ids, reverse=True)[:MAX_RUNS_PER_CELL]
            if (one := _earlier_run(cell, run_id, runs)) is not None
        ]
        if earlier:
            costs[cell.id] = _known_cost(cell, earlier)
    return costs


def compile_ranges(plan: SweepPlan, store: Store, *, machine: str) -> dict[str, Range]:
    """Return the cold compile times of candidates over all workloads, by candidate name."""
    ranges: dict[str, Range] = {}
    for candidate in {one.name for cell in plan.cells for one in cell.study.candidates}:
        entries = store.comparisons(RunFilter(machine=machine, candidate=candidate))
        times = [
            entry.compile_s
            for entry in entries
            if entry.compile_s is not None and entry.candidate == candidate
        ]
        if times:
            ranges[candidate] = Range(low=min(times), high=max(times))
    return ranges


def machine_of_plan(plan: SweepPlan) -> str:
    """Return the machine name that runs of this sweep will have; "" if cells run elsewhere.

    The name contains the GPU model, which only torch knows: a worker is queried for it.
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
        except WorkerFailure:
            return ""
    return machine_name(info)


def read_resources(folder: Path) -> MachineResources:
    """Return the free space of the sweep's file system and the memory of this machine."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free_bytes: int | None = shutil.disk_usage(place).free
    except OSError:
        free_bytes = None
    total_bytes = read_limits().total_mib << 20
    return MachineResources(free_bytes=free_bytes, machine_bytes=total_bytes or None)


def _names(cell: Cell) -> list[Names]:
    study = cell.study
    label = study.workloads[0].label
    return [(label, study.baseline.name, candidate.name) for candidate in study.candidates]


def _runs_by_names(plan: SweepPlan, store: Store, machine: str) -> dict[Names, list[str]]:
    """Return the runs with a comparison that did not fail, with one query per pair of variants."""
    pairs = {
        (baseline, candidate) for cell in plan.cells for _, baseline, candidate in _names(cell)
    }
    run_ids: dict[Names, list[str]] = {}
    for baseline, candidate in sorted(pairs):
        query = RunFilter(machine=machine, baseline=baseline, candidate=candidate)
        for entry in store.comparisons(query):
            names = (entry.workload, entry.baseline, entry.candidate)
            if entry.verdict is not Verdict.FAILED:
                run_ids.setdefault(names, []).append(entry.run)
    return run_ids


def _earlier_run(cell: Cell, run_id: str, runs: _RunCache) -> _EarlierRun | None:
    run = runs.run(run_id)
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
    first_s, later_s, launch_s = runs.starts_s(run, label)
    return _EarlierRun(
        measured_s=max(row.elapsed_s for row in rows),
        first_start_s=first_s,
        later_start_s=later_s,
        launch_s=launch_s,
        decided=len(rows) == len(names) and all(row.verdict in DECIDED for row in rows),
        same_budget=run.study.budget == cell.study.budget,
        size_bytes=runs.size_bytes(run) / workloads,
        tensor_bytes=_tensor_bytes(rows),
    )


def _known_cost(cell: Cell, earlier: Sequence[_EarlierRun]) -> KnownCost:
    """Return a range around earlier times; up to the budget if an earlier run hit its limit."""
    ends: list[tuple[float, float]] = []
    for one in earlier:
        allowed_s = measuring_s(cell.study.budget, start_s=one.later_start_s).high
        measured_s = one.measured_s if one.same_budget else min(one.measured_s, allowed_s)
        took_s = CONTROLLER_S + one.first_start_s + measured_s
        most_s = took_s * SPREAD
        if not (one.same_budget and one.decided):
            most_s = max(most_s, one.first_start_s * SPREAD + allowed_s)
        ends.append((took_s / SPREAD, most_s))
    on_cpu = cell.study.workloads[0].device == "cpu"
    tensors = max((one.tensor_bytes for one in earlier if one.tensor_bytes), default=None)
    return KnownCost(
        source="history",
        time_s=Range(low=min(low for low, _ in ends), high=max(high for _, high in ends)),
        first_launch_s=CONTROLLER_S + median(one.first_start_s + one.launch_s for one in earlier),
        size_bytes=max(one.size_bytes for one in earlier),
        tensor_bytes=tensors if on_cpu else None,
        device_bytes=None if on_cpu else tensors,
    )


def _starts_of(run: Run) -> dict[str, Starts]:
    """Return the startup times by workload label."""
    try:
        records = run.launches()
    except ResultsDamaged:
        return {}
    starts: dict[str, dict[bool, list[float]]] = {}
    measured_s: dict[str, float] = {}
    for record in records:
        label = str(record.get("workload"))
        by_first = starts.setdefault(label, {})
        start_s = float(record.get("start_s") or 0.0)
        by_first.setdefault(record.get("launch") == 0, []).append(start_s)
        timing = record.get("timing")
        if isinstance(timing, Mapping) and label not in measured_s:
            measured_s[label] = float(timing.get("wall_s") or 0.0)
    return {
        label: (
            max(by_first.get(True, [0.0])),
            max(by_first[False]) if False in by_first else None,
            measured_s.get(label, 0.0),
        )
        for label, by_first in starts.items()
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
