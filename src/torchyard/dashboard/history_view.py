"""One workload over time: points, change points and notes. Asks the archive, renders nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from torchyard.core.change import SeriesHistory
from torchyard.core.records import encode
from torchyard.core.stored import METRICS, Metric, RunEntry, Series, SeriesPoint, Wanted
from torchyard.dashboard.archive import Archive
from torchyard.errors import NothingToDo
from torchyard.reports.history_charts import history_description, history_spec
from torchyard.reports.history_wording import (
    chance_text,
    change_interval,
    change_size,
    range_text,
    value_text,
)
from torchyard.reports.vega import charts_available, lazy_chart
from torchyard.workflow.history import history_of as find_changes

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = [
    "History",
    "change_rows",
    "history_chart",
    "history_data",
    "history_rows",
    "read_history",
]


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
