"""Calibrate a sweep: one process per workload builds it and runs one eager iteration.

Measures how long starting takes and how much memory a worker needs, and finds workloads that cannot
run here, with the reason. They stay in the plan: their cell becomes a row that says why. The result
is saved in the sweep's folder after each workload, so that no workload is calibrated twice.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torchyard.bench.launch import Crew, VariantFailed, draw_launch
from torchyard.core.comparison import Failure
from torchyard.core.records import decode, encode
from torchyard.core.study import Variant, Workload
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.sweep.cost_estimate import Known, Range, measuring_s
from torchyard.sweep.model import Cell, SweepPlan

__all__ = [
    "CALIBRATION_FILE",
    "Calibration",
    "calibrate",
    "known_from_calibration",
    "read_calibrations",
]

CALIBRATION_FILE: Final = "calibration.json"
CALIBRATION_FORMAT: Final = 1
WARM_UP_S: Final = 8.0
"""The longest that a variant of the first launch is warmed up (`measure.preparation`)."""
CHECKS: Final = 20
"""Iterations that checking a candidate may take, in some precision or other."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was seen of one workload."""

    workload: Workload
    ready_s: float = 0.0
    """Start of the process, import of torch, building."""
    iteration_s: float | None = None
    worker_bytes: int | None = None
    """Most memory that the process had."""
    device_bytes: int | None = None
    """Of tensors on a GPU in one iteration, above what lay there before."""
    failure: Failure | None = None
    """Why it cannot run here."""


Told = Callable[[Calibration, int, int], None]
"""One is done, its number, how many there are."""


def calibrate(
    plan: SweepPlan, folder: Path, *, known: Sequence[Calibration] = (), told: Told
) -> list[Calibration]:
    """Look at every workload of the plan that is not known yet; logs and the file go to `folder`."""
    found = {one.workload: one for one in known}
    cells: dict[Workload, Cell] = {}
    for cell in plan.cells:
        cells.setdefault(cell.study.workloads[0], cell)
    scratch = folder / "scratch"
    try:
        for number, (workload, cell) in enumerate(cells.items(), start=1):
            if workload not in found:
                logs = folder / "logs" / "calibration" / cell.id
                found[workload] = _look_at(cell, logs, scratch=scratch)
                _write(folder / CALIBRATION_FILE, list(found.values()))
            told(found[workload], number, len(cells))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return [found[workload] for workload in cells]


def read_calibrations(folder: Path) -> list[Calibration]:
    """What an earlier look left there; none when there was none."""
    path = folder / CALIBRATION_FILE
    try:
        record = read_json(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ResultsDamaged(
            f"{path} cannot be read", why=str(error), hint="remove it, and give --calibrate again"
        ) from error
    if not isinstance(record, dict) or record.get("format") != CALIBRATION_FORMAT:
        return []  # of another version: it is made anew when it is asked for
    try:
        return [
            decode(Calibration, one, where="", strict=False) for one in record.get("workloads", [])
        ]
    except UsageError as error:
        raise ResultsDamaged(
            f"{path} is not a calibration",
            why=error.what,
            hint="remove it, and give --calibrate again",
        ) from error


def known_from_calibration(
    plan: SweepPlan,
    calibrations: Sequence[Calibration],
    *,
    compiling: Mapping[str, Range] | None = None,
) -> dict[str, Known]:
    """By cell; `compiling` is what candidates took to compile other workloads, by name."""
    found = {one.workload: one for one in calibrations}
    return {
        cell.id: _known(cell, found[cell.study.workloads[0]], compiling or {})
        for cell in plan.cells
        if cell.study.workloads[0] in found
    }


def _known(cell: Cell, seen: Calibration, compiling: Mapping[str, Range]) -> Known:
    if seen.failure is not None:
        return Known(
            source="calibration",
            time_s=Range(low=0.0, high=2 * seen.ready_s),
            unsupported=f"{seen.failure.kind}: {_first_line(seen.failure.message)}",
        )
    study = cell.study
    iteration_s = seen.iteration_s or 0.0
    measuring = measuring_s(study.budget, start_s=seen.ready_s)
    compiled = [variant for variant in study.variants if variant.backend != "eager"]
    ranges = [compiling[variant.name] for variant in compiled if variant.name in compiling]
    check_s = CHECKS * iteration_s * len(study.candidates)
    return Known(
        source="calibration",
        time_s=Range(
            low=seen.ready_s + measuring.low + sum(one.low for one in ranges),
            high=seen.ready_s
            + measuring.high
            + sum(one.high for one in ranges)
            + WARM_UP_S * len(study.variants)
            + check_s,
        ),
        worker_bytes=seen.worker_bytes,
        device_bytes=seen.device_bytes,
        compiling_unknown=len(ranges) < len(compiled),
    )


def _look_at(cell: Cell, logs: Path, *, scratch: Path) -> Calibration:
    """One process, one build, one iteration; whatever goes wrong is what was seen."""
    study, workload = cell.study, cell.study.workloads[0]
    variant = replace(study.baseline, name="eager", backend="eager", options=())
    logs.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    crew = Crew(
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
            seen = _iterate(crew, variant)
            return replace(seen, ready_s=ready_s)
    except VariantFailed as failed:
        return Calibration(
            workload=workload, ready_s=time.monotonic() - began_s, failure=failed.failure
        )


def _iterate(crew: Crew, variant: Variant) -> Calibration:
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
        worker_bytes=_peak_bytes(pid) if isinstance(pid, int) else None,
        device_bytes=tensors
        if crew.workload.device != "cpu" and isinstance(tensors, int)
        else None,
    )


def _peak_bytes(pid: int) -> int | None:
    """The most memory that the process has had, as the kernel counts it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if name == "VmHWM" and words and words[0].isdecimal():
            return int(words[0]) * 1024
    return None


def _write(path: Path, found: Sequence[Calibration]) -> None:
    record = {"format": CALIBRATION_FORMAT, "workloads": [encode(one) for one in found]}
    replace_file(path, to_json_text(record, indent=1) + "\n")


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0] if lines else ""
