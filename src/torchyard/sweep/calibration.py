"""Calibrate a sweep: one process per workload builds it and runs one eager iteration.

Measures the startup time and the memory of a worker, and detects workloads that cannot run here.
Those stay in the plan: their cell becomes a row with the reason. The result is saved in the sweep's
folder after each workload, so that no workload is calibrated twice.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch
from torchyard.bench.preparation import FIRST_WARM_UP_LIMIT_S
from torchyard.bench.time_estimate import Range, measuring_s
from torchyard.core.comparison import Failure
from torchyard.core.records import encode
from torchyard.core.study import Variant, Workload
from torchyard.errors import ResultsDamaged
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_json
from torchyard.process.tree import peak_resident_bytes
from torchyard.results.plausibility import decode_stored
from torchyard.sweep.cost_estimate import KnownCost
from torchyard.sweep.model import Cell, SweepPlan

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
        cell.id: _known_cost(cell, by_workload[cell.study.workloads[0]], compiling or {})
        for cell in plan.cells
        if cell.study.workloads[0] in by_workload
    }


def _known_cost(cell: Cell, calibration: Calibration, compiling: Mapping[str, Range]) -> KnownCost:
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
