"""The list of runs and the list of workloads: rows, paging, sparklines and JSON. Renders nothing.

Each workload has its latest verdict, the change since the previous run and a sparkline of its speedups, which
`templates/dashboard_parts.html.j2` draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from torchyard.core.comparison import WITHOUT_SPEED, Verdict
from torchyard.core.records import encode
from torchyard.core.short_names import short_texts
from torchyard.core.units import format_count
from torchyard.dashboard.links import PAGE_SIZE, ListRequest, RunColumn
from torchyard.dashboard.live_store import MOST_RECENT, LiveStore
from torchyard.dashboard.overview import Recent, overview_data, recent_change
from torchyard.errors import NothingToDo, ResultsDamaged, TorchyardError, UsageError
from torchyard.presentation.tables import finite
from torchyard.presentation.vega import charts_available, lazy_chart
from torchyard.presentation.wording import ABSENT, number_text
from torchyard.results.compare.compare_sides import compare_sides
from torchyard.results.compare.model import CrossComparison
from torchyard.results.compare.sides import Rules, Side
from torchyard.results.history.changes import (
    change_interval,
    change_levels,
    change_size,
    p_text,
    range_text,
    value_text,
)
from torchyard.results.history.changes import history_of as find_changes
from torchyard.results.history.charts import history_description, history_spec
from torchyard.results.model import (
    METRICS,
    ComparisonEntry,
    Metric,
    RunEntry,
    RunFilter,
    Series,
    SeriesHistory,
)
from torchyard.results.run_reader import Run, read_run

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A chosen run and variant."""

    run: RunEntry
    variant: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The comparison, or why it failed."""

    comparison: CrossComparison | None = None
    problem: TorchyardError | None = None
    variants: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Variants of both runs."""


def compare_chosen(before: Chosen, after: Chosen) -> Compared:
    """Compare two chosen runs."""
    try:
        one, other = (read_run(Path(chosen.run.folder)) for chosen in (before, after))
    except ResultsDamaged as error:
        return Compared(problem=error)
    variants = (_variants(one), _variants(other))
    try:
        comparison = compare_sides(_side(before, one), _side(after, other), Rules())
    except (UsageError, NothingToDo, ResultsDamaged) as error:
        return Compared(problem=error, variants=variants)
    return Compared(comparison=comparison, variants=variants)


def compared_data(compared: Compared) -> dict[str, Any]:
    """Return the comparison as JSON values."""
    if compared.problem is not None:
        problem = compared.problem
        return {"comparison": None, "problem": {"what": problem.what, "why": problem.why}}
    return {"comparison": encode(compared.comparison), "problem": None}


def _side(chosen: Chosen, run: Run) -> Side:
    if chosen.variant and chosen.variant not in _variants(run):
        raise UsageError(
            f"{chosen.run.id} has no variant {chosen.variant!r}",
            hint=f"its variants: {', '.join(_variants(run))}",
        )
    text = f"{chosen.run.id}#{chosen.variant}" if chosen.variant else chosen.run.id
    return Side(text=text, runs=(run,), variant=chosen.variant or None)


def _variants(run: Run) -> tuple[str, ...]:
    return tuple(variant.name for variant in run.study.variants)


MOST_ROWS: Final = 500


@dataclass(frozen=True, kw_only=True)
class History(SeriesHistory):
    """The history of a series for a page."""

    runs: dict[str, RunEntry]
    """The runs of the points, by id."""
    metrics: tuple[Metric, ...]
    """Metrics that have a history for the same workload, baseline, candidate and machine."""


def read_history(live_store: LiveStore, series: Series) -> History:
    """Return the history of exactly this series; raise NothingToDo if it was never measured."""
    metrics = tuple(
        metric for metric in METRICS if live_store.points(replace(series, metric=metric))
    )
    latest = live_store.latest(series)
    if not metrics and latest is None:
        raise NothingToDo(
            f"{series.workload!r} was never measured",
            why=f"no run has {series.candidate!r} vs {series.baseline!r} on {series.machine!r}",
            hint="start from the list of workloads",
        )
    points = live_store.points(series)
    shown = points[-MOST_ROWS:]
    near = (
        RunFilter(workload=series.workload, since=shown[0].started) if shown else RunFilter(limit=0)
    )
    shown_runs = {point.run for point in shown}
    runs = live_store.runs(near)
    return History(
        **vars(find_changes(series, points, cache=live_store.change_cache)),
        runs={run.id: run for run in runs if run.id in shown_runs},
        metrics=metrics,
    )


def history_rows(history: History) -> list[dict[str, Any]]:
    """Return the table rows of the newest points, newest first."""
    metric = history.series.metric
    rows: list[dict[str, Any]] = []
    before = ""
    for point in history.points:
        run = history.runs.get(point.run)
        ends = [value_text(metric, end) for end in (point.low, point.high) if end is not None]
        rows.append(
            {
                "point": point,
                "value": value_text(metric, point.value),
                "interval": f"[{', '.join(ends)}]" if ends else "",
                "torch": run.torch if run else "",
                "notes": run.notes if run else (),
                "before": before,
            }
        )
        before = point.run
    return rows[: -MOST_ROWS - 1 : -1]


def change_rows(history: History) -> list[dict[str, Any]]:
    """Return the table rows of the changes, newest first."""
    metric = history.series.metric
    return [
        {
            "change": change,
            "towards": change.towards(metric),
            "size": change_size(change),
            "interval": change_interval(change),
            "levels": [value_text(metric, level) for level in change_levels(history, change)],
            "revisions": range_text(change),
            "p": p_text(change),
        }
        for change in reversed(history.changes)
    ]


def history_chart(history: History, *, clean: Callable[[str], str] = str) -> Markup | str:
    """Return the chart, which the page draws when visible; `clean` redacts private text."""
    if not history.points or not charts_available():
        return ""
    spec = {**finite(history_spec(history), clean), "width": "container"}
    return lazy_chart(spec, title="", description=clean(history_description(history)))


def history_data(history: History) -> dict[str, Any]:
    """Return the history as JSON values."""
    return {
        "series": encode(history.series),
        "points": encode(history.points),
        "changes": encode(history.changes),
        "metrics": list(history.metrics),
    }


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Paging:
    """The shown part of a list."""

    page: int
    pages: int
    total: int
    first: int
    """Number of the first shown item, from 1; 0 if there is none."""
    last: int

    @property
    def text(self) -> str:
        """The range as text, such as `51 to 100 of 1,234`."""
        if self.pages == 1:
            return f"{self.total:,}"
        return f"{self.first:,} to {self.last:,} of {self.total:,}"


def page_of(items: Sequence[T], page: int, *, size: int) -> tuple[Sequence[T], Paging]:
    """Return one page of the items; the last one if there are fewer pages."""
    pages = max(1, -(-len(items) // size))
    page = min(page, pages)
    start = (page - 1) * size
    shown = items[start : start + size]
    first = start + 1 if shown else 0
    return shown, Paging(
        page=page, pages=pages, total=len(items), first=first, last=start + len(shown)
    )


WIDTH: Final = 120
HEIGHT: Final = 26
_EDGE: Final = 3
_MOST_POINTS: Final = 60
_NARROWEST: Final = math.log(1.02)
"""Minimum range of the scale, so that small noise looks small."""


@dataclass(frozen=True, kw_only=True)
class Sparkline:
    """A small line chart."""

    points: str = ""
    """Points of an SVG polyline; empty if there is nothing to draw."""
    last: tuple[float, float] = (0.0, 0.0)
    one: float | None = None
    """Vertical position of speedup 1, if it is in range."""
    tone: str = ""
    """The change since the previous run, which determines the color of the last point."""
    label: str = ""
    width: int = WIDTH
    height: int = HEIGHT


def sparkline(speedups: Sequence[float], *, tone: str = "") -> Sparkline:
    """Return the sparkline of the latest speedups, oldest first, on a logarithmic scale."""
    shown = [value for value in speedups if 0 < value < math.inf][-_MOST_POINTS:]
    if not shown:
        return Sparkline()
    logs = [math.log(value) for value in shown]
    middle = (min(logs) + max(logs)) / 2
    half = max(max(logs) - min(logs), _NARROWEST) / 2

    def height(log: float) -> float:
        share = (log - middle) / (2 * half) + 0.5
        return round(HEIGHT - _EDGE - share * (HEIGHT - 2 * _EDGE), 1)

    step = (WIDTH - 2 * _EDGE) / max(1, len(logs) - 1)
    coordinates = [(round(_EDGE + index * step, 1), height(log)) for index, log in enumerate(logs)]
    if len(coordinates) == 1:
        coordinates = [(WIDTH / 2, coordinates[0][1])]
    return Sparkline(
        points=" ".join(f"{x:g},{y:g}" for x, y in coordinates),
        last=coordinates[-1],
        one=height(0.0) if middle - half <= 0.0 <= middle + half else None,
        tone=tone,
        label=f"the last {len(shown)} from {shown[0]:.3f}x to {shown[-1]:.3f}x",
    )


RUN_FIELDS: Final = (
    ("study", "Study", "text, * and ?"),
    ("workload", "Workload", "kernels/*"),
    ("candidate", "Candidate", "inductor*"),
    ("revision", "Revision", ""),
    ("machine", "Machine", ""),
    ("since", "From", ""),
    ("until", "To", ""),
)
"""Name, label and an example of each filter."""

_KEYS: Final[dict[RunColumn, Callable[[RunEntry], Any]]] = {
    "started": lambda run: run.started,
    "study": lambda run: run.study.lower(),
    "machine": lambda run: run.machine.lower(),
    "torch": lambda run: run.torch.lower(),
    "revision": lambda run: run.revision,
    "comparisons": lambda run: run.comparisons,
    "slower": lambda run: dict(run.verdicts).get(Verdict.SLOWER, 0),
}


def run_table(
    live_store: LiveStore, request: ListRequest, *, size: int = PAGE_SIZE
) -> tuple[list[RunEntry], Paging]:
    """Return one page of the requested runs."""
    runs = live_store.runs(request.filters)
    if request.sort != "started" or not request.falling:
        # Equal rows stay newest first, whatever the sort direction.
        runs.sort(key=_KEYS[request.sort], reverse=request.falling)
    shown, paging = page_of(runs, request.page, size=size)
    return list(shown), paging


def runs_data(live_store: LiveStore, request: ListRequest) -> dict[str, Any]:
    """Return the same page as JSON values."""
    shown, paging = run_table(live_store, request)
    return {
        "total": paging.total,
        "page": paging.page,
        "pages": paging.pages,
        "runs": [run_record(entry) for entry in shown],
        **({} if request.is_filtered or paging.page > 1 else overview_data(live_store)),
    }


def run_record(entry: RunEntry) -> dict[str, Any]:
    """Return a run as JSON values, without its folder."""
    record: dict[str, Any] = encode(entry)
    del record["folder"]
    record["verdicts"] = {str(verdict): count for verdict, count in entry.verdicts}
    return record


WORKLOAD_FIELDS: Final = (
    ("workload", "Workload", "kernels/*"),
    ("candidate", "Candidate", "inductor*"),
    ("machine", "Machine", ""),
)


@dataclass(frozen=True, kw_only=True)
class WorkloadRow:
    """A series in the list of workloads."""

    series: Series
    title: str
    """The workload; a user's file by its short name."""
    latest: ComparisonEntry | None
    runs: int
    """Number of runs, at most `MOST_RECENT`."""
    spark: Sparkline
    change: Recent | None = None
    """Change of the speedup since the previous run."""

    @property
    def change_rank(self) -> float | str:
        """Sort key of the change."""
        return self.change.ratio if self.change else ""

    @property
    def runs_text(self) -> str:
        """The number of runs as text."""
        if self.runs >= MOST_RECENT:
            return f"{MOST_RECENT} or more runs"
        return format_count(self.runs, "run")

    @property
    def verdict_rank(self) -> int:
        """Sort key of the verdict."""
        return list(Verdict).index(self.latest.verdict) if self.latest else len(Verdict)

    @property
    def speedup(self) -> str:
        """The latest speedup as text."""
        speedup = self.latest.speedup if self.latest else None
        return ABSENT if speedup is None else self._shown(f"{number_text(speedup)}x")

    @property
    def interval(self) -> str:
        """The interval of the latest speedup as text."""
        if self.latest is None or self.latest.low is None or self.latest.high is None:
            return ""
        return self._shown(f"[{number_text(self.latest.low)}, {number_text(self.latest.high)}]")

    @property
    def untrusted(self) -> str:
        """Why the latest comparison is untrusted."""
        return self.latest.untrusted if self.latest else ""

    def _shown(self, text: str) -> str:
        counts = self.latest is None or self.latest.verdict not in WITHOUT_SPEED
        return text if counts and not self.untrusted else f"({text})"


def workload_table(
    live_store: LiveStore, request: ListRequest, *, size: int = PAGE_SIZE
) -> tuple[list[WorkloadRow], Paging]:
    """Return one page of the requested series, sorted by name."""
    matching = sorted(
        live_store.series(request.filters),
        key=lambda series: (series.workload, series.candidate, series.baseline, series.machine),
    )
    shown, paging = page_of(matching, request.page, size=size)
    titles = short_texts(series.workload for series in matching)
    return [_row(live_store, series, titles[series.workload]) for series in shown], paging


def workloads_data(live_store: LiveStore, request: ListRequest) -> dict[str, Any]:
    """Return the same page as JSON values."""
    rows, paging = workload_table(live_store, request)
    return {
        "total": paging.total,
        "page": paging.page,
        "pages": paging.pages,
        "workloads": [
            {**encode(row.series), "runs": row.runs, "latest": encode(row.latest)} for row in rows
        ],
    }


def _row(live_store: LiveStore, series: Series, title: str) -> WorkloadRow:
    recent = live_store.recent(series)
    speedups = [
        entry.speedup
        for entry in reversed(recent)
        if entry.speedup is not None and entry.verdict not in WITHOUT_SPEED
    ]
    change = recent_change(recent)
    return WorkloadRow(
        series=series,
        title=title,
        latest=recent[0] if recent else None,
        runs=len(recent),
        spark=sparkline(speedups, tone=_tone(change, recent)),
        change=change,
    )


def _tone(change: Recent | None, recent: Sequence[ComparisonEntry]) -> str:
    """Return the color of the newest point: a change, or a result without a speed."""
    if change is not None:
        return change.verdict.value
    return recent[0].verdict.value if recent and recent[0].verdict in WITHOUT_SPEED else ""
