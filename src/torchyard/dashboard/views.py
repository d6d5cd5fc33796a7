"""Data of the comparison page and of the history page, and their JSON. Renders nothing.

Runs are given as entries of the index; no part of a request is used as a path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchyard.core.records import encode
from torchyard.dashboard.live_store import Archive
from torchyard.errors import NothingToDo, ResultsDamaged, TorchyardError, UsageError
from torchyard.presentation.vega import charts_available, lazy_chart
from torchyard.results.compare.compare_sides import compare_sides
from torchyard.results.compare.model import CrossComparison
from torchyard.results.compare.sides import Rules, Side
from torchyard.results.history.changes import history_of as find_changes
from torchyard.results.history.charts import history_description, history_spec
from torchyard.results.history.wording import (
    chance_text,
    change_interval,
    change_size,
    range_text,
    value_text,
)
from torchyard.results.model import (
    METRICS,
    Metric,
    RunEntry,
    Series,
    SeriesHistory,
    SeriesPoint,
    Wanted,
)
from torchyard.results.run_reader import Run, read_run


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One side as it was chosen."""

    run: RunEntry
    variant: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What came out, or why nothing could."""

    comparison: CrossComparison | None = None
    problem: TorchyardError | None = None
    variants: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Of both runs, to choose from."""


def compare_chosen(before: Chosen, after: Chosen) -> Compared:
    """The comparison of two runs of the store."""
    try:
        one, other = _read(before), _read(after)
    except ResultsDamaged as error:
        return Compared(problem=error)
    variants = (_variants(one), _variants(other))
    try:
        made = compare_sides(_side(before, one), _side(after, other), Rules())
    except (UsageError, NothingToDo, ResultsDamaged) as error:
        return Compared(problem=error, variants=variants)
    return Compared(comparison=made, variants=variants)


def compared_data(compared: Compared) -> dict[str, Any]:
    """The same as plain values."""
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
            hint=f"it has {', '.join(_variants(run))}",
        )
    text = f"{chosen.run.id}#{chosen.variant}" if chosen.variant else chosen.run.id
    return Side(text=text, runs=(run,), variant=chosen.variant or None)


def _variants(run: Run) -> tuple[str, ...]:
    return tuple(variant.name for variant in run.study.variants)


if TYPE_CHECKING:
    from markupsafe import Markup


MOST_ROWS: Final = 500


@dataclass(frozen=True, kw_only=True)
class History:
    """What is known of a series."""

    found: SeriesHistory
    runs: dict[str, RunEntry]
    """The runs of the points, by id."""
    metrics: tuple[Metric, ...]
    """What there are histories of for the same workload, baseline, candidate and machine."""

    @property
    def series(self) -> Series:
        """What the history is of."""
        return self.found.series

    @property
    def points(self) -> tuple[SeriesPoint, ...]:
        """All of them, oldest first."""
        return self.found.points


def read_history(archive: Archive, series: Series) -> History:
    """The history of exactly this series; raises NothingToDo when nothing was ever measured."""
    metrics = tuple(metric for metric in METRICS if archive.points(replace(series, metric=metric)))
    latest = archive.latest(series)
    if not metrics and latest is None:
        raise NothingToDo(
            f"{series.workload!r} was never measured",
            why=f"with {series.candidate!r} against {series.baseline!r} on {series.machine!r}",
            hint="start from the list of workloads",
        )
    points = archive.points(series)
    shown = points[-MOST_ROWS:]
    near = Wanted(workload=series.workload, since=shown[0].started) if shown else Wanted(limit=0)
    wanted = {point.run for point in shown}
    runs = archive.runs(near)
    return History(
        found=find_changes(series, points, memory=archive.memory),
        runs={run.id: run for run in runs if run.id in wanted},
        metrics=metrics,
    )


def history_rows(history: History) -> list[dict[str, Any]]:
    """What the table shows of each point, newest first; of a long history the newest ones."""
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
    """What the table shows of each change, newest first."""
    metric = history.series.metric
    return [
        {
            "change": change,
            "towards": change.towards(metric),
            "size": change_size(change),
            "interval": change_interval(change),
            "levels": [value_text(metric, point.value) for point in (change.before, change.after)],
            "revisions": range_text(change),
            "p": chance_text(change),
        }
        for change in reversed(history.found.changes)
    ]


def history_chart(history: History, *, clean: Callable[[str], str] = str) -> Markup | str:
    """Drawn by the page when it is seen; `clean` takes private texts out of it."""
    if not history.points or not charts_available():
        return ""
    spec = _with_texts(history_spec(history.found), clean)
    return lazy_chart(spec, title="", description=clean(history_description(history.found)))


def _with_texts(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_texts(item, clean) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, clean) for item in value]
    return clean(value) if isinstance(value, str) else value


def history_data(history: History) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "series": encode(history.series),
        "points": encode(history.points),
        "changes": encode(history.found.changes),
        "metrics": list(history.metrics),
    }
