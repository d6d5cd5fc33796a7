"""Estimate the wall time of a bench run: from earlier runs, else from the time budget. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from torchyard.bench.durations import measuring_s, preparation_s
from torchyard.bench.earlier_runs import EarlierRun
from torchyard.core.study import Study
from torchyard.core.units import format_count
from torchyard.presentation.wording import rough_duration


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
