"""Entries of the index of runs, the filters on them, and histories with their changes. No I/O.

Entries are rows of the index: enough to list and filter runs, draw a history and choose what to
compare. Everything else is in the run folders, which are the source of truth. A history may be of
a speedup (higher is better) or of a time or size (lower is better).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from torchyard.core.comparison import Interval, Verdict

Metric = Literal["speedup", "time", "compile", "memory"]
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)
"""What a history can be of: the candidate's speedup over its baseline, which was measured beside it
and so holds on a noisy machine, or the candidate's own time (ns), cold compile time (s) or peak
memory (bytes)."""


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One run."""

    id: str
    folder: str
    study: str = ""
    state: str = ""
    started: str = ""
    """ISO 8601, UTC, ends in Z; sorts by time."""
    finished: str | None = None
    machine: str = ""
    """Short name of the hardware, alike for all runs on it: `results.machine_identity`."""
    machine_text: str = ""
    """The same for people: host, processor, GPU."""
    torch: str = ""
    """Versions in the run's targets, joined by a comma."""
    revision: str = ""
    """What was measured: what the user named, or the commit of the CI job, or torch's own commit."""
    torchyard: str = ""
    verdicts: tuple[tuple[Verdict, int], ...] = ()
    notes: tuple[str, ...] = ()
    damage: str = ""
    """Why the folder cannot be read; then little else is known."""

    @property
    def comparisons(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.verdicts)


@dataclass(frozen=True, kw_only=True)
class ComparisonEntry:
    """One comparison of one run."""

    run: str
    started: str
    """Of its run."""
    machine: str
    revision: str
    workload: str
    """Its label."""
    suite: str
    mode: str
    device: str
    baseline: str
    candidate: str
    verdict: Verdict
    """The state that is shown (`Comparison.state`)."""
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    launches: int = 0
    baseline_ns: float | None = None
    candidate_ns: float | None = None
    compile_s: float | None = None
    memory_bytes: int | None = None
    torch: str = ""
    """Of the candidate's target."""
    untrusted: str = ""
    """Why its numbers must not be trusted; empty when they may be."""

    @property
    def trusted(self) -> bool:
        """Whether its numbers may be used."""
        return not self.untrusted


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which runs or comparisons: what is left empty does not choose. Texts may hold * and ?.

    Without those a text is meant as a whole, except that `run` may be the beginning of an id,
    `revision` that of a commit (seven letters or more), and `workload` a label without mode and
    parameters (`models/gpt`). A run fits a filter of comparisons when one of its comparisons does.
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
    """Moments as in `RunEntry.started`; `since` is included, `until` is not."""
    limit: int | None = None
    """Newest first when there are more."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The same thing over time: what a history is of."""

    workload: str
    baseline: str
    candidate: str
    machine: str
    metric: Metric = "speedup"


class SeriesPoint(NamedTuple):
    """One run's value of a series.

    A history has tens of thousands, and a frozen dataclass takes four times as long to make.
    """

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
    """From one level to another, at once (step) or over many runs (drift)."""

    kind: ChangeKind
    position: int
    """Place in the series of the first point at the new level, or at which a drift begins."""
    last: int
    """Place at which a drift has come to its end; `position` for a step."""
    before: SeriesPoint
    after: SeriesPoint
    """The cause lies after the revision of `before`, up to and with the revision of `after`."""
    ratio: float
    """Value after over value before."""
    interval: Interval | None
    p_value: float
    """Chance that a series in which nothing changed shows such a change anywhere."""
    p_adjusted: float | None = None
    """The same among all series that were looked at (Benjamini-Hochberg)."""

    def towards(self, metric: Metric) -> Towards:
        """Whether the change is for the better."""
        return "better" if (self.ratio > 1.0) == (metric == "speedup") else "worse"


@dataclass(frozen=True, kw_only=True)
class SeriesHistory:
    """A series with what changed in it."""

    series: Series
    points: tuple[SeriesPoint, ...]
    """All of them, oldest first; untrusted ones are shown and not judged."""
    changes: tuple[ChangePoint, ...] = ()
    weak: tuple[ChangePoint, ...] = ()
    """Changes that stand alone, but not among as many series as were looked at."""

    @property
    def left_out(self) -> int:
        """How many points were not judged."""
        return sum(point.untrusted for point in self.points)

    @property
    def largest(self) -> ChangePoint | None:
        """The change that moves the value most."""
        return max(
            self.changes, key=lambda change: max(change.ratio, 1.0 / change.ratio), default=None
        )
