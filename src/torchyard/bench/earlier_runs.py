"""Costs of earlier runs with the same workload and variants, to estimate the time of the next one.

A recorded run counts if it has the same workload and variants on the same machine. The index is
queried first, and only the newest run folders are opened. Read-only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torchyard.bench.durations import LATER_START_SHARE, measuring_s
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.records import encode
from torchyard.core.study import Budget, Study, Workload
from torchyard.errors import ResultsDamaged
from torchyard.machine.facts import read_facts
from torchyard.machine.identity import machine_name
from torchyard.results.index.store import Store
from torchyard.results.model import RunFilter
from torchyard.results.run_reader import Run, read_run

MAX_RUNS: Final = 3
"""The newest runs that are opened for one workload."""
CONTROLLER_S: Final = 1.5
"""Start of the measuring process, and the end of the worker processes of a launch."""
DECIDED: Final = frozenset({Verdict.FASTER, Verdict.SLOWER, Verdict.SAME})

Names = tuple[str, str, str]
"""Label of the workload, baseline, candidate."""
Starts = tuple[float, float | None, float]
"""Startup times of the first launch and of the slowest later one, and the measuring time of the first,
in seconds."""


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """Costs of one workload in one earlier run."""

    run: str
    """Id of the run."""
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

    def expected_s(self, budget: Budget) -> float:
        """Return the expected wall time with this budget.

        Measuring that was decided ends at the same time again; otherwise it uses the whole budget.
        """
        measured_s = self.measured_s
        if not self.same_budget:
            allowed_s = measuring_s(budget, start_s=self.later_start_s)
            least_s = allowed_s.low if self.decided else budget.time_s
            measured_s = min(max(measured_s, least_s), allowed_s.high)
        return CONTROLLER_S + self.first_start_s + measured_s


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
            except (ResultsDamaged, OSError, ValueError, OverflowError, RecursionError):
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


def earlier_runs(
    studies: Mapping[str, Study], store: Store, *, machine: str
) -> dict[str, list[EarlierRun]]:
    """Return the newest earlier runs of each study with one workload, by the key of the study.

    An empty `machine` means any machine. Studies without an earlier run are left out.
    """
    run_ids_by_names = _runs_by_names(studies.values(), store, machine)
    runs = _RunCache(store)
    earlier: dict[str, list[EarlierRun]] = {}
    for key, study in studies.items():
        run_ids = dict.fromkeys(
            run for name in _names(study) for run in run_ids_by_names.get(name, ())
        )
        newest = [
            one
            for run_id in sorted(run_ids, reverse=True)[:MAX_RUNS]
            if (one := _earlier_run(study, run_id, runs)) is not None
        ]
        if newest:
            earlier[key] = newest
    return earlier


def machine_of_workloads(
    workloads: Iterable[Workload], targets: Mapping[str, Mapping[str, object]]
) -> str:
    """Return the machine name that a run of these workloads here will have.

    The name contains the GPU models, which only torch knows: `targets` are handshakes of workers.
    """
    return machine_name(
        {
            "machine": read_facts(),
            "study": {"workloads": [encode(workload) for workload in workloads]},
            "targets": targets,
        }
    )


def _names(study: Study) -> list[Names]:
    label = study.workloads[0].label
    return [(label, study.baseline.name, candidate.name) for candidate in study.candidates]


def _runs_by_names(studies: Iterable[Study], store: Store, machine: str) -> dict[Names, list[str]]:
    """Return the runs with a comparison that did not fail, with one query per pair of variants."""
    pairs = {(baseline, candidate) for study in studies for _, baseline, candidate in _names(study)}
    run_ids: dict[Names, list[str]] = {}
    for baseline, candidate in sorted(pairs):
        query = RunFilter(machine=machine, baseline=baseline, candidate=candidate)
        for entry in store.comparisons(query):
            names = (entry.workload, entry.baseline, entry.candidate)
            if entry.verdict is not Verdict.FAILED:
                run_ids.setdefault(names, []).append(entry.run)
    return run_ids


def _earlier_run(study: Study, run_id: str, runs: _RunCache) -> EarlierRun | None:
    run = runs.run(run_id)
    if run is None:
        return None
    label = study.workloads[0].label
    names = set(_names(study))
    rows = [
        row
        for row in run.comparisons
        if (row.workload.label, row.baseline, row.candidate) in names and row.failure is None
    ]
    if not rows:
        return None
    workloads = max(1, len({row.workload.label for row in run.comparisons}))
    first_s, later_s, launch_s = runs.starts_s(run, label)
    return EarlierRun(
        run=run_id,
        measured_s=max(row.elapsed_s for row in rows),
        first_start_s=first_s,
        later_start_s=later_s,
        launch_s=launch_s,
        decided=len(rows) == len(names) and all(row.verdict in DECIDED for row in rows),
        same_budget=run.study.budget == study.budget,
        size_bytes=runs.size_bytes(run) / workloads,
        tensor_bytes=_tensor_bytes(rows),
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
        start_s = _duration_s(record.get("start_s"))
        by_first.setdefault(record.get("launch") == 0, []).append(start_s)
        timing = record.get("timing")
        if isinstance(timing, Mapping) and label not in measured_s:
            measured_s[label] = _duration_s(timing.get("wall_s"))
    return {
        label: (
            max(by_first.get(True, [0.0])),
            max(by_first[False]) if False in by_first else None,
            measured_s.get(label, 0.0),
        )
        for label, by_first in starts.items()
    }


def _duration_s(value: object) -> float:
    """Return a recorded duration; 0 if it is missing or impossible."""
    return value if isinstance(value, int | float) and 0.0 <= value < math.inf else 0.0


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
