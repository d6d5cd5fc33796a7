"""Entries of the index of runs, the filters on them, and histories with their changes. No I/O.

Entries are rows of the index, enough to list and filter runs and to draw a history. Everything else
is in the run folders, which are authoritative. The metric of a history is a speedup (higher is
better), or a time or size (lower is better).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self, get_args

from torchyard.core.comparison import Interval, Verdict

Metric = Literal["speedup", "time", "compile", "memory"]
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)
"""The candidate's speedup over its baseline, which is paired and therefore less affected by noise,
or the candidate's own time (ns), cold compile time (s) or peak memory (bytes)."""


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """A run in the index."""

    id: str
    folder: str
    study: str = ""
    state: str = ""
    started: str = ""
    """ISO 8601, UTC, ends in Z; sorts by time."""
    finished: str | None = None
    machine: str = ""
    """Short name of the hardware, the same for all runs on it (`machine.identity`)."""
    machine_text: str = ""
    """Description of the machine: host, processor, GPU."""
    torch: str = ""
    """Torch versions of the run's targets, comma-separated."""
    revision: str = ""
    """Measured revision: given by the user, or the commit of the CI job, or torch's own commit."""
    torchyard: str = ""
    verdicts: tuple[tuple[Verdict, int], ...] = ()
    notes: tuple[str, ...] = ()
    damage: str = ""
    """Why the folder cannot be read; most other fields are then empty."""

    @property
    def comparisons(self) -> int:
        """Number of comparisons."""
        return sum(count for _, count in self.verdicts)

    @property
    def untrusted(self) -> int:
        """Number of untrusted comparisons."""
        return dict(self.verdicts).get(Verdict.UNTRUSTED, 0)


@dataclass(frozen=True, kw_only=True)
class ComparisonEntry:
    """A comparison in the index."""

    run: str
    started: str
    """Start of its run."""
    machine: str
    revision: str
    workload: str
    """Label of the workload."""
    suite: str
    mode: str
    device: str
    baseline: str
    candidate: str
    verdict: Verdict
    """The reported state (`Comparison.state`)."""
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    launches: int = 0
    baseline_ns: float | None = None
    candidate_ns: float | None = None
    compile_s: float | None = None
    memory_bytes: int | None = None
    launch_sd: float | None = None
    """Standard deviation of the log speedup between launches, which includes the noise of pairs."""
    pair_sd: float | None = None
    """Standard deviation of the log speedup between pairs of a launch."""
    pairs: int = 0
    torch: str = ""
    """Torch version of the candidate's target."""
    untrusted: str = ""
    """Why its numbers are untrusted; empty if they are trusted."""

    @property
    def trusted(self) -> bool:
        """Whether its numbers can be trusted."""
        return not self.untrusted


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """A filter on runs or comparisons; empty fields match everything. Texts may contain * and ?.

    Without wildcards, `run` may be a prefix of an id, `revision` a prefix of a commit (seven letters or more), and
    `workload` a label without mode and parameters. A run matches if one of its comparisons does.
    """

    run: str = ""
    study: str = ""
    state: str = ""
    workload: str = ""
    suite: str = ""
    mode: str = ""
    device: str = ""
    baseline: str = ""
    candidate: str = ""
    verdicts: tuple[Verdict, ...] = ()
    machine: str = ""
    revision: str = ""
    since: str = ""
    until: str = ""
    """Times in the format of `RunEntry.started`; `since` is inclusive, `until` exclusive."""
    limit: int | None = None
    """Maximum number of results, newest first."""


@dataclass(frozen=True, kw_only=True)
class LaunchVariance:
    """Variance of log speedups between launches, pooled over comparisons of one machine, device and suite."""

    machine: str
    device: str
    suite: str
    comparisons: int
    launches: int
    observed: float
    """Variance of the effects of launches."""
    pair_mean: float
    """Variance of pairs divided by their number per launch: the variance of a mean of pairs."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Identifies a time series: one metric of one comparison on one machine."""

    workload: str
    baseline: str
    candidate: str
    machine: str
    metric: Metric = "speedup"

    @property
    def names(self) -> dict[str, Any]:
        """What identifies its comparisons: workload, baseline, candidate and machine."""
        return {name: value for name, value in vars(self).items() if name != "metric"}

    @classmethod
    def of(cls, entry: ComparisonEntry, metric: Metric = "speedup") -> Self:
        """Return the series of a comparison."""
        names = ("workload", "baseline", "candidate", "machine")
        return cls(metric=metric, **{name: getattr(entry, name) for name in names})


class SeriesPoint(NamedTuple):
    """The value of one run in a series; a NamedTuple, because a history may have tens of thousands."""

    run: str
    started: str
    revision: str
    value: float
    low: float | None = None
    high: float | None = None
    untrusted: bool = False


ChangeKind = Literal["step", "drift"]
Towards = Literal["better", "worse"]


@dataclass(frozen=True, kw_only=True)
class ChangePoint:
    """A change of level: a step, or a drift over many runs."""

    kind: ChangeKind
    position: int
    """Index of the first point at the new level, or of the start of a drift."""
    last: int
    """Index of the end of a drift; equal to `position` for a step."""
    before: SeriesPoint
    after: SeriesPoint
    """The cause is after the revision of `before`, up to and including the revision of `after`."""
    ratio: float
    """Value after / value before."""
    interval: Interval | None
    p_value: float
    """Probability that a series without changes shows such a change anywhere."""
    p_adjusted: float | None = None
    """Corrected for all analyzed series (Benjamini-Hochberg)."""

    def towards(self, metric: Metric) -> Towards:
        """Return whether the change is an improvement."""
        return "better" if (self.ratio > 1.0) == (metric == "speedup") else "worse"


@dataclass(frozen=True, kw_only=True)
class SeriesHistory:
    """A series and its changes."""

    series: Series
    points: tuple[SeriesPoint, ...]
    """All points, oldest first; untrusted points are shown but not analyzed."""
    changes: tuple[ChangePoint, ...] = ()
    weak: tuple[ChangePoint, ...] = ()
    """Changes that are not significant after the correction for all analyzed series."""

    @property
    def left_out(self) -> int:
        """Number of untrusted points, which were not analyzed."""
        return sum(point.untrusted for point in self.points)
