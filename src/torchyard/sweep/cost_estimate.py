"""Estimate the time, disk and memory of a sweep as ranges, each with its source.

Recorded runs on this machine (`bench.time_estimate`) have priority, then a calibration; without
either, only the bound set by the budget is given.

A calibration starts one process per workload, which builds it and runs one eager iteration: it measures
the startup time and the memory of a worker, and detects workloads that cannot run here. Those stay in
the plan: their cell becomes a row with the reason. The result is saved in the sweep's folder after
each workload, so that no workload is calibrated twice.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch
from torchyard.bench.preparation import FIRST_WARM_UP_LIMIT_S
from torchyard.bench.target_checks import inspect_target
from torchyard.bench.time_estimate import (
    CONTROLLER_S,
    EarlierRun,
    Range,
    earlier_runs,
    machine_of_workloads,
    measuring_s,
)
from torchyard.core.comparison import Failure
from torchyard.core.records import encode
from torchyard.core.study import Study, Variant, Workload
from torchyard.errors import ResultsDamaged
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_json
from torchyard.machine.facts.isolation import read_limits
from torchyard.process.ending import WorkerFailure
from torchyard.process.tree import peak_resident_bytes
from torchyard.results.index.store import Store
from torchyard.results.model import RunFilter
from torchyard.results.plausibility import decode_stored
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
        launch_times = self.first_launch_s().values()
        return sum(launch_times) / len(launch_times) * len(self.cells) if launch_times else None

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


SPREAD: Final = 1.5
"""Factor between the time of an earlier run and the next one: when measuring stops is random."""


def costs_from_runs(plan: SweepPlan, store: Store, *, machine: str) -> dict[str, KnownCost]:
    """Return known costs by cell id, from recorded runs with the same workload and variants.

    An empty `machine` means any machine.
    """
    studies = {cell.id: cell.study for cell in plan.cells}
    return {
        cell: _known_cost(studies[cell], earlier)
        for cell, earlier in earlier_runs(studies, store, machine=machine).items()
    }


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

    The name contains the GPU model, which only torch can report: a worker is queried for it.
    """
    if plan.executor.name != "local":
        return ""
    workloads = [cell.study.workloads[0] for cell in plan.cells]
    targets = {}
    if any(workload.device != "cpu" for workload in workloads):
        target = plan.cells[0].study.baseline.target
        try:
            targets[target.name] = inspect_target(target)
        except WorkerFailure:
            return ""
    return machine_of_workloads(workloads, targets)


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


def _known_cost(study: Study, earlier: Sequence[EarlierRun]) -> KnownCost:
    """Return a range around earlier times; up to the budget if an earlier run hit its limit."""
    ends: list[tuple[float, float]] = []
    for one in earlier:
        allowed_s = measuring_s(study.budget, start_s=one.later_start_s).high
        measured_s = one.measured_s if one.same_budget else min(one.measured_s, allowed_s)
        took_s = CONTROLLER_S + one.first_start_s + measured_s
        most_s = took_s * SPREAD
        if not (one.same_budget and one.decided):
            most_s = max(most_s, one.first_start_s * SPREAD + allowed_s)
        ends.append((took_s / SPREAD, most_s))
    on_cpu = study.workloads[0].device == "cpu"
    tensors = max((one.tensor_bytes for one in earlier if one.tensor_bytes), default=None)
    return KnownCost(
        source="history",
        time_s=Range(low=min(low for low, _ in ends), high=max(high for _, high in ends)),
        first_launch_s=CONTROLLER_S + median(one.first_start_s + one.launch_s for one in earlier),
        size_bytes=max(one.size_bytes for one in earlier),
        tensor_bytes=tensors if on_cpu else None,
        device_bytes=None if on_cpu else tensors,
    )


CALIBRATION_FILE: Final = "calibration.json"
CALIBRATION_FORMAT: Final = 1
CHECK_ITERATIONS: Final = 20
"""Upper bound of the iterations that the accuracy check of a candidate runs."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The measured startup, iteration time and memory of one workload."""

    workload: Workload
    ready_s: float = 0.0
    """Process start, import of torch and building of the workload."""
    iteration_s: float | None = None
    worker_bytes: int | None = None
    """Peak resident memory of the process."""
    device_bytes: int | None = None
    """Peak GPU memory of tensors in one iteration, above what was allocated before it."""
    failure: Failure | None = None
    """Why the workload cannot run here."""


CalibrationListener = Callable[[Calibration, int, int], None]
"""Progress callback: a finished calibration, its number, and the total."""


def calibrate(
    plan: SweepPlan,
    folder: Path,
    *,
    earlier: Sequence[Calibration] = (),
    listener: CalibrationListener,
) -> list[Calibration]:
    """Calibrate every workload of the plan without an earlier calibration.

    Logs and the calibration file are written to `folder`.
    """
    calibrations = {one.workload: one for one in earlier}
    cells: dict[Workload, Cell] = {}
    for cell in plan.cells:
        cells.setdefault(cell.study.workloads[0], cell)
    scratch = folder / "scratch"
    try:
        for number, (workload, cell) in enumerate(cells.items(), start=1):
            if workload not in calibrations:
                logs = folder / "logs" / "calibration" / cell.id
                calibrations[workload] = _calibrate_workload(cell, logs, scratch=scratch)
                done = [encode(one) for one in calibrations.values()]
                record = {"format": CALIBRATION_FORMAT, "workloads": done}
                replace_json(folder / CALIBRATION_FILE, record)
            listener(calibrations[workload], number, len(cells))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return [calibrations[workload] for workload in cells]


def read_calibrations(folder: Path) -> list[Calibration]:
    """Return the calibrations saved in the folder; an empty list if there are none."""
    path = folder / CALIBRATION_FILE
    try:
        record = read_json(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ResultsDamaged(
            f"{path} cannot be read",
            why=str(error),
            hint="delete the file and run with --calibrate again",
        ) from error
    if not isinstance(record, dict) or record.get("format") != CALIBRATION_FORMAT:
        return []  # another format version: --calibrate replaces it
    again = "delete the file and run with --calibrate again"
    return [
        decode_stored(Calibration, one, place=path, hint=again)
        for one in record.get("workloads", [])
    ]


def costs_from_calibration(
    plan: SweepPlan,
    calibrations: Sequence[Calibration],
    *,
    compiling: Mapping[str, Range] | None = None,
) -> dict[str, KnownCost]:
    """Return the known costs by cell id.

    `compiling` has the time that candidates took to compile other workloads, by candidate name.
    """
    by_workload = {one.workload: one for one in calibrations}
    return {
        cell.id: _calibrated_cost(cell, by_workload[cell.study.workloads[0]], compiling or {})
        for cell in plan.cells
        if cell.study.workloads[0] in by_workload
    }


def _calibrated_cost(
    cell: Cell, calibration: Calibration, compiling: Mapping[str, Range]
) -> KnownCost:
    if calibration.failure is not None:
        return KnownCost(
            source="calibration",
            time_s=Range(low=0.0, high=2 * calibration.ready_s),
            unsupported=f"{calibration.failure.kind}: {_first_line(calibration.failure.message)}",
        )
    study = cell.study
    iteration_s = calibration.iteration_s or 0.0
    measuring = measuring_s(study.budget, start_s=calibration.ready_s)
    compiled = [variant for variant in study.variants if variant.backend != "eager"]
    ranges = [compiling[variant.name] for variant in compiled if variant.name in compiling]
    check_s = CHECK_ITERATIONS * iteration_s * len(study.candidates)
    return KnownCost(
        source="calibration",
        time_s=Range(
            low=calibration.ready_s + measuring.low + sum(one.low for one in ranges),
            high=calibration.ready_s
            + measuring.high
            + sum(one.high for one in ranges)
            + FIRST_WARM_UP_LIMIT_S * len(study.variants)
            + check_s,
        ),
        worker_bytes=calibration.worker_bytes,
        device_bytes=calibration.device_bytes,
        compiling_unknown=len(ranges) < len(compiled),
    )


def _calibrate_workload(cell: Cell, logs: Path, *, scratch: Path) -> Calibration:
    """Start one process, build the workload and run one iteration; record a failure."""
    study, workload = cell.study, cell.study.workloads[0]
    variant = replace(study.baseline, name="eager", backend="eager", options=())
    logs.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    crew = LaunchProcesses(
        workload,
        [variant],
        study.settings,
        draw=draw_launch(random.Random(study.settings.seed)),
        log_folder=logs,
        scratch=scratch,
    )
    try:
        with crew:
            ready_s = time.monotonic() - began_s
            return replace(_run_iteration(crew, variant), ready_s=ready_s)
    except VariantFailed as failed:
        return Calibration(
            workload=workload, ready_s=time.monotonic() - began_s, failure=failed.failure
        )


def _run_iteration(crew: LaunchProcesses, variant: Variant) -> Calibration:
    def ask(verb: str, **fields: object) -> dict[str, Any]:
        limit_s = crew.settings.step_limit_s
        return crew.ask(
            variant, verb, phase="calibration", limit_s=limit_s, variant=variant.name, **fields
        )

    metrics = ask("measure")
    block = ask("block", inner=1, samples=1, prime=0, settle=False, flush_l2=False)
    pid = crew.hellos[variant.process_key].get("pid")
    tensors = metrics.get("peak_memory_bytes")
    return Calibration(
        workload=crew.workload,
        iteration_s=float(block["samples_ns"][0]) / 1e9,
        worker_bytes=peak_resident_bytes(pid) if isinstance(pid, int) else None,
        device_bytes=tensors
        if crew.workload.device != "cpu" and isinstance(tensors, int)
        else None,
    )


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0] if lines else ""
