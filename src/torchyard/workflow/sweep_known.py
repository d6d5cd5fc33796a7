"""What kept runs and this machine tell of a sweep before it runs.

Looks for the same workloads with the same variants on the same machine. Asks the index first, and
opens only the newest run folders that answer something. Changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.records import encode
from torchyard.core.stored import Wanted
from torchyard.core.sweep import Cell, SweepPlan
from torchyard.errors import ResultsDamaged
from torchyard.machine.limits import read_limits
from torchyard.machine.run_facts import read_facts
from torchyard.measure.targets import inspect_target
from torchyard.process.trouble import WorkerTrouble
from torchyard.results.index.store import Store
from torchyard.results.machine_identity import machine_name
from torchyard.results.run_reader import Run, read_run
from torchyard.workflow.sweep_estimate import Known, Range, Surroundings, measuring_s

__all__ = ["compile_ranges", "known_from_runs", "machine_of_plan", "read_surroundings"]

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
