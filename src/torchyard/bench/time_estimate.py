"""Estimate the wall time of a bench run: from earlier runs, else from the time budget.

A recorded run counts if it has the same workload and variants on the same machine. The index is
queried first, and only the newest run folders are opened. Read-only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.records import encode
from torchyard.core.study import Budget, Study, Workload
from torchyard.core.units import format_count
from torchyard.errors import ResultsDamaged
from torchyard.machine.facts import read_facts
from torchyard.machine.identity import machine_name
from torchyard.presentation.wording import rough_duration
from torchyard.results.model import RunFilter
from torchyard.results.run_reader import Run, read_run

if TYPE_CHECKING:
    from torchyard.results.index.store import Store


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """The estimated wall time of a run and its source; recorded in `run.json`."""

    expected_s: float
    """For workloads without an earlier run, a guess that includes their whole time budget."""
    workloads: int
    known: int
    """Number of workloads with an earlier run."""
    runs: int
    """Number of earlier runs that were used."""

    @property
    def line(self) -> str:
        """The estimate in one line: `plan: 3 workloads, about 4 min (from 5 earlier runs)`."""
        unknown = self.workloads - self.known
        source = f"from {format_count(self.runs, 'earlier run')}"
        if not self.known:
            source = "guessed from the time budget: there is no earlier run"
        elif unknown:
            source = f"{self.known} {source}, {unknown} guessed from the time budget"
        workloads = format_count(self.workloads, "workload")
        return f"plan: {workloads}, about {rough_duration(self.expected_s)} ({source})"


def estimate_time(study: Study, earlier: Mapping[str, Sequence[EarlierRun]]) -> TimeEstimate:
    """Estimate the wall time; `earlier` are the earlier runs by workload label.

    Runs with the same budget count if there are any. A workload without an earlier run takes as long to
    prepare as the others, or as `bench.durations` assumes, and then its whole time budget.
    """
    budget = study.budget
    used = {
        workload.label: [one for one in runs if one.same_budget] or runs
        for workload in study.workloads
        if (runs := earlier.get(workload.label, ()))
    }
    compiled = sum(variant.backend != "eager" for variant in study.variants)
    starts_s = [one.first_start_s for runs in used.values() for one in runs]
    guess_s = median(starts_s) if starts_s else preparation_s(compiled)
    guess_s += measuring_s(budget).high
    total_s = sum(
        median(one.expected_s(budget) for one in used[workload.label])
        if workload.label in used
        else guess_s
        for workload in study.workloads
    )
    return TimeEstimate(
        expected_s=round(total_s, 1),
        workloads=len(study.workloads),
        known=len(used),
        runs=len({one.run for runs in used.values() for one in runs}),
    )


SHORTEST_S: Final = 0.3
"""Shortest measuring time of a launch."""
LATER_START_SHARE: Final = 0.3
"""Start-up time of a later launch as a share of the first, which also compiles and checks."""
OVERTIME: Final = 2.0
"""Factor on the budget until which an explicit number of launches is completed."""
_START_S: Final = 6.0
_COMPILE_S: Final = 12.0


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


def is_count_fixed(budget: Budget) -> bool:
    """Whether the user requested a number of launches, which the time budget does not reduce."""
    return budget.min_launches == budget.max_launches or budget.min_launches > Budget.min_launches


def preparation_s(compiled: int) -> float:
    """Return the assumed time until the first launch is ready, with this number of compiled variants."""
    return _START_S + compiled * _COMPILE_S


def measuring_s(budget: Budget, *, start_s: float | None = None) -> Range:
    """Return how long a session measures: from the first possible decision to the whole budget.

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

        A comparison that was decided is expected to take as long again, any other the whole budget.
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

    The name contains the GPU models, which only torch can report: `targets` are handshakes of workers.
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
