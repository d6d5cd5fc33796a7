"""Data of the comparison page and of the history page, and their JSON. Renders nothing.

Runs are given as entries of the index; no part of a request is used as a path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchyard.core.records import encode
from torchyard.dashboard.live_store import LiveStore
from torchyard.errors import NothingToDo, ResultsDamaged, TorchyardError, UsageError
from torchyard.presentation.vega import charts_available, lazy_chart
from torchyard.results.compare.compare_sides import compare_sides
from torchyard.results.compare.model import CrossComparison
from torchyard.results.compare.sides import Rules, Side
from torchyard.results.history.changes import history_of as find_changes
from torchyard.results.history.charts import history_description, history_spec
from torchyard.results.history.wording import (
    change_interval,
    change_levels,
    change_size,
    p_text,
    range_text,
    value_text,
)
from torchyard.results.model import (
    METRICS,
    Metric,
    RunEntry,
    RunFilter,
    Series,
    SeriesHistory,
    SeriesPoint,
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
        one, other = _read(before), _read(after)
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


def _read(chosen: Chosen) -> Run:
    return read_run(Path(chosen.run.folder))


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
class History:
    """The history of a series for a page."""

    found: SeriesHistory
    runs: dict[str, RunEntry]
    """The runs of the points, by id."""
    metrics: tuple[Metric, ...]
    """Metrics that have a history for the same workload, baseline, candidate and machine."""

    @property
    def series(self) -> Series:
        """The series of the history."""
        return self.found.series

    @property
    def points(self) -> tuple[SeriesPoint, ...]:
        """All points, oldest first."""
        return self.found.points


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
        found=find_changes(series, points, cache=live_store.change_cache),
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
            "levels": [value_text(metric, level) for level in change_levels(history.found, change)],
            "revisions": range_text(change),
            "p": p_text(change),
        }
        for change in reversed(history.found.changes)
    ]


def history_chart(history: History, *, clean: Callable[[str], str] = str) -> Markup | str:
    """Return the chart, which the page draws when visible; `clean` redacts private text."""
    if not history.points or not charts_available():
        return ""
    spec = {**with_texts(history_spec(history.found), clean), "width": "container"}
    return lazy_chart(spec, title="", description=clean(history_description(history.found)))


def with_texts(value: Any, clean: Callable[[str], str]) -> Any:
    """Return a spec with cleaned texts."""
    if isinstance(value, dict):
        return {key: with_texts(item, clean) for key, item in value.items()}
    if isinstance(value, list):
        return [with_texts(item, clean) for item in value]
    return clean(value) if isinstance(value, str) else value


def history_data(history: History) -> dict[str, Any]:
    """Return the history as JSON values."""
    return {
        "series": encode(history.series),
        "points": encode(history.points),
        "changes": encode(history.found.changes),
        "metrics": list(history.metrics),
    }
