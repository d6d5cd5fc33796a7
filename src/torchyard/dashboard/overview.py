"""The overview above the list of runs: regressions first, then the means of suites over revisions.

It is about change: a workload whose speedup fell is a regression, even if the candidate is still
faster than the baseline. A step that the history confirms has a p-value; with fewer runs, the newest
two are compared by their intervals, which the page states. Renders nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from torchyard.core.comparison import WITHOUT_SPEED, Verdict
from torchyard.core.records import encode
from torchyard.core.short_names import short_texts
from torchyard.core.study import DEFAULT_NAME
from torchyard.core.units import format_count, format_duration, format_percent
from torchyard.dashboard.live_store import LiveStore
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import ABSENT, number_text
from torchyard.results.history.changes import (
    change_interval,
    change_levels,
    change_size,
    histories_of,
    p_text,
    range_text,
)
from torchyard.results.history.charts import place_axis
from torchyard.results.model import ComparisonEntry, RunEntry, RunFilter, Series, SeriesHistory

_NEWEST: Final = 5000
"""Number of the newest comparisons that the overview is based on."""
_MOST_SERIES: Final = 1000
_MOST_LINES: Final = 6
_LABEL_LETTERS: Final = 10
_HEIGHT: Final = 220
_SUITE_KEYS: Final = ("study", "suite", "baseline", "candidate", "machine", "workloads")


@dataclass(frozen=True, kw_only=True)
class Recent:
    """Change of a speedup from the previous trusted run to the newest one."""

    before: ComparisonEntry
    after: ComparisonEntry
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Slower or faster than before if the interval of the ratio excludes 1, else undecided."""
        if self.high < 1.0:
            return Verdict.SLOWER
        return Verdict.FASTER if self.low > 1.0 else Verdict.UNDECIDED

    @property
    def mark(self) -> str:
        """A hollow mark: two runs do not confirm a change."""
        return {Verdict.SLOWER: "▽", Verdict.FASTER: "△"}.get(self.verdict, "≈")

    @property
    def size(self) -> str:
        """The relative change as text."""
        return format_percent(self.ratio - 1.0, signed=True)

    @property
    def interval(self) -> str:
        """The interval of the relative change as text."""
        ends = (format_percent(end - 1.0, signed=True) for end in (self.low, self.high))
        return f"[{', '.join(ends)}]"


def recent_change(newest_first: Sequence[ComparisonEntry]) -> Recent | None:
    """Return the change between the newest two runs; None if one is untrusted or has no interval over launches."""
    if not newest_first or not _has_interval(newest_first[0]):
        return None
    after = newest_first[0]
    before = next((one for one in newest_first[1:] if _has_interval(one)), None)
    if before is None:
        return None
    logs = [_log(after.speedup) - _log(before.speedup)]
    half = math.hypot(*((_log(one.high) - _log(one.low)) / 2 for one in (before, after)))
    return Recent(
        before=before,
        after=after,
        ratio=math.exp(logs[0]),
        low=math.exp(logs[0] - half),
        high=math.exp(logs[0] + half),
    )


def _log(number: float | None) -> float:
    return math.log(number) if number else 0.0


def _has_interval(entry: ComparisonEntry) -> bool:
    numbers = (entry.speedup, entry.low, entry.high)
    return _counts(entry) and entry.launches > 1 and all(x and 0 < x < math.inf for x in numbers)


def _counts(entry: ComparisonEntry) -> bool:
    return entry.verdict not in WITHOUT_SPEED and entry.trusted and bool(entry.speedup)


def mean_speedup(entries: Iterable[ComparisonEntry]) -> tuple[float, int] | None:
    """Return the geometric mean and its number of comparisons, selected as in the report of a run."""
    sound = [one for one in entries if _counts(one) and one.low is not None]
    counted = [one for one in sound if one.launch_sd is not None and one.launches > 1] or sound
    if not counted:
        return None
    return math.exp(fmean(_log(one.speedup) for one in counted)), len(counted)


def run_title(run: RunEntry, entries: Sequence[ComparisonEntry]) -> str:
    """Return the name of the study; of an unnamed one, what it compared."""
    if run.study not in {DEFAULT_NAME, ""} or not entries:
        return one_line(run.study or run.id)
    labels = list(dict.fromkeys(one.workload for one in entries))
    names = short_texts(labels)
    what = names[labels[0]] if len(labels) == 1 else format_count(len(labels), "workload")
    candidates = ", ".join(dict.fromkeys(one.candidate for one in entries))
    return one_line(f"{what}: {candidates} vs {entries[0].baseline}")


def run_speedup(entries: Sequence[ComparisonEntry]) -> str:
    """Return the speedup of a run with one comparison, or the geometric mean of several."""
    if len(entries) == 1:
        speedup = entries[0].speedup
        if speedup is None:
            return ABSENT
        text = f"{number_text(speedup)}x"
        return text if _counts(entries[0]) else f"({text})"
    if len({(one.baseline, one.candidate) for one in entries}) > 1:
        return ABSENT
    mean = mean_speedup(entries)
    return ABSENT if mean is None else f"{number_text(mean[0])}x mean of {mean[1]}"


@dataclass(frozen=True, kw_only=True)
class SuiteLine:
    """Geometric means of the same workloads of a suite, over runs."""

    study: str
    suite: str
    baseline: str
    candidate: str
    machine: str
    workloads: int
    points: tuple[tuple[ComparisonEntry, float], ...]
    """An entry of each run and the mean, oldest first."""

    @property
    def name(self) -> str:
        """Suite and variants."""
        return one_line(f"{self.suite}: {self.candidate} vs {self.baseline}")

    @property
    def latest(self) -> str:
        """The newest mean as text."""
        return f"{number_text(self.points[-1][1])}x"

    @property
    def change(self) -> str:
        """Relative change since the previous run."""
        if len(self.points) == 1:
            return ABSENT
        return format_percent(self.points[-1][1] / self.points[-2][1] - 1.0, signed=True)


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What changed, and the means of suites."""

    regressions: tuple[Mapping[str, Any], ...]
    """Rows of the table: newest first, then largest first."""
    suites: tuple[SuiteLine, ...]
    series: int
    """Number of series in the newest runs."""
    assessed: int
    """Number of series with two trusted runs, which a regression needs."""


def read_overview(live_store: LiveStore) -> Overview:
    """Return the overview of the newest runs."""
    newest = live_store.comparisons(RunFilter(limit=_NEWEST))
    by_series: dict[Series, list[ComparisonEntry]] = {}
    for entry in newest:
        by_series.setdefault(Series.of(entry), []).append(entry)
    titles = short_texts(series.workload for series in by_series)
    shown = dict(list(by_series.items())[:_MOST_SERIES])
    analyzed = histories_of(shown, live_store.points, cache=live_store.change_cache)
    steps = {one.series: one for one in analyzed if one.changes}
    rows = [
        row
        for series, entries in shown.items()
        if (row := _regression(series, entries, steps.get(series), titles[series.workload]))
    ]
    rows.sort(key=lambda row: row["ratio"])
    rows.sort(key=lambda row: row["started"], reverse=True)
    studies = {run.id: run.study for run in live_store.runs(RunFilter())}
    return Overview(
        regressions=tuple(rows),
        suites=tuple(_suite_lines(newest, studies)),
        series=len(shown),
        assessed=sum(sum(map(_has_interval, entries)) > 1 for entries in shown.values()),
    )


def overview_data(live_store: LiveStore) -> dict[str, Any]:
    """Return the overview as JSON values."""
    overview = read_overview(live_store)
    return {
        "regressions": [{**row, "series": encode(row["series"])} for row in overview.regressions],
        "suites": [
            {
                **{key: getattr(line, key) for key in _SUITE_KEYS},
                "points": [
                    {"run": one.run, "started": one.started, "revision": one.revision, "mean": mean}
                    for one, mean in line.points
                ],
            }
            for line in overview.suites
        ],
    }


def _regression(
    series: Series, entries: Sequence[ComparisonEntry], history: SeriesHistory | None, title: str
) -> dict[str, Any] | None:
    """Return the row of a series whose last change is for the worse, if there is one."""
    change = history.changes[-1] if history is not None else None
    recent = recent_change(entries)
    common = {"series": series, "title": title, "times": ""}
    if history is not None and change is not None and change.towards("speedup") == "worse":
        return {
            **common,
            "confirmed": True,
            "ratio": change.ratio,
            "size": change_size(change),
            "interval": change_interval(change),
            "levels": [f"{number_text(level)}x" for level in change_levels(history, change)],
            "evidence": f"{change.kind} on {change.after.started[:10]}, p {p_text(change)}",
            "started": change.after.started,
            "revisions": range_text(change),
            "runs": (change.before.run, change.after.run),
        }
    if recent is None or recent.verdict is not Verdict.SLOWER:
        return None
    return {
        **common,
        "confirmed": False,
        "ratio": recent.ratio,
        "size": recent.size,
        "interval": recent.interval,
        "levels": [f"{number_text(one.speedup)}x" for one in (recent.before, recent.after)],
        "times": _times_text(recent),
        "evidence": "newest two runs only; not confirmed by the history",
        "started": recent.after.started,
        "revisions": f"{_revision(recent.before)}..{_revision(recent.after)}",
        "runs": (recent.before.run, recent.after.run),
    }


def _times_text(recent: Recent) -> str:
    """Return which of the two variants changed: their times in both runs."""
    texts = []
    for name, field in (
        (recent.after.candidate, "candidate_ns"),
        (recent.after.baseline, "baseline_ns"),
    ):
        times = [getattr(one, field) for one in (recent.before, recent.after)]
        if None not in times:
            texts.append(f"{name} {' → '.join(map(format_duration, times))}")
    return one_line("; ".join(texts))


def _revision(entry: ComparisonEntry) -> str:
    return one_line(entry.revision)[:_LABEL_LETTERS] or one_line(entry.run)


def _suite_lines(
    newest: Sequence[ComparisonEntry], studies: Mapping[str, str]
) -> Iterable[SuiteLine]:
    """Yield a line per study, suite, baseline, candidate and machine that has several runs."""
    groups: dict[tuple[str, ...], dict[str, list[ComparisonEntry]]] = {}
    for one in newest:
        study = studies.get(one.run, "")
        if study in {DEFAULT_NAME, ""}:
            continue
        key = (study, one.suite, one.baseline, one.candidate, one.machine)
        groups.setdefault(key, {}).setdefault(one.run, []).append(one)
    for (study, suite, baseline, candidate, machine), runs in groups.items():
        speeds = [
            {one.workload: one for one in entries if _counts(one)} for entries in runs.values()
        ]
        speeds = [one for one in speeds if one]
        if not speeds:
            continue
        # Only runs that have all workloads of the newest run are comparable with it.
        common = set(speeds[0])
        points = [
            (next(iter(one.values())), math.exp(fmean(_log(one[name].speedup) for name in common)))
            for one in reversed(speeds)
            if common <= set(one)
        ]
        if len(points) > 1:
            yield SuiteLine(
                study=study,
                suite=suite,
                baseline=baseline,
                candidate=candidate,
                machine=machine,
                workloads=len(common),
                points=tuple(points),
            )


def suites_spec(lines: Sequence[SuiteLine]) -> dict[str, Any]:
    """Return the chart of the means over revisions, or over dates if revisions are unknown."""
    shown = lines[:_MOST_LINES]
    runs = sorted(
        {(entry.started, entry.run, entry.revision) for one in shown for entry, _ in one.points}
    )
    places = {run: place for place, (_, run, _) in enumerate(runs)}
    dated = len({revision for _, _, revision in runs}) < len(runs)
    names = {
        str(place): one_line(started[:10] if dated else revision[:_LABEL_LETTERS])
        for place, (started, _, revision) in enumerate(runs)
    }
    several = len({one.machine for one in shown}) > 1 or len({one.study for one in shown}) > 1
    rows = [
        {
            "place": places[entry.run],
            "suite": one_line(
                f"{line.name} · {line.study} · {line.machine}" if several else line.name
            ),
            "mean": mean,
            "started": entry.started[:16].replace("T", " "),
            "revision": one_line(entry.revision),
            "value": f"{number_text(mean)}x",
        }
        for line in shown
        for entry, mean in line.points
    ]
    color = {
        "field": "suite",
        "type": "nominal",
        "scale": {
            "range": [
                f"var(--{c})" for c in ("candidate", "slower", "same", "wrong", "text", "muted")
            ]
        },
        "legend": {"title": None, "orient": "top", "labelLimit": 420, "columns": 1},
    }
    return {
        "width": "container",
        "height": _HEIGHT,
        "data": {"values": rows},
        "params": [{"name": "names", "value": names}],
        "encoding": {
            "x": place_axis(dated=dated),
            "y": {
                "field": "mean",
                "type": "quantitative",
                "title": "geometric mean speedup",
                "scale": {"zero": False, "nice": True},
                "axis": {"tickCount": 5, "domain": False},
            },
            "color": color,
        },
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.8}},
            {
                "mark": {"type": "point", "filled": True, "size": 42, "opacity": 1},
                "encoding": {
                    "tooltip": [
                        {"field": name, "type": "nominal", "title": name}
                        for name in ("suite", "value", "revision", "started")
                    ]
                },
            },
        ],
    }
