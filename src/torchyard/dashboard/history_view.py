"""One workload over time: points, change points and notes. Asks the archive, renders nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from torchyard.core.change import SeriesHistory
from torchyard.core.records import encode
from torchyard.core.stored import METRICS, Metric, RunEntry, Series, SeriesPoint, Wanted
from torchyard.core.units import format_bytes, format_duration, format_percent
from torchyard.dashboard.archive import Archive
from torchyard.errors import NothingToDo
from torchyard.reports.wording import number_text
from torchyard.workflow.history import history_of as find_changes

__all__ = ["METRIC_NAMES", "History", "change_rows", "history_data", "history_rows", "read_history"]

METRIC_NAMES: Final[dict[Metric, str]] = {
    "speedup": "Speedup",
    "time": "Time",
    "compile": "Compile time",
    "memory": "Peak memory",
}


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
    wanted = {point.run for point in points}
    runs = archive.runs(Wanted(workload=series.workload)) if points else []
    return History(
        found=find_changes(series, points, memory=archive.memory),
        runs={run.id: run for run in runs if run.id in wanted},
        metrics=metrics,
    )


def history_rows(history: History) -> list[dict[str, Any]]:
    """What the table shows of each point, newest first."""
    metric = history.series.metric
    rows: list[dict[str, Any]] = []
    before = ""
    for point in history.points:
        run = history.runs.get(point.run)
        ends = (_value_text(metric, point.low), _value_text(metric, point.high))
        rows.append(
            {
                "point": point,
                "value": _value_text(metric, point.value),
                "interval": f"[{ends[0]}, {ends[1]}]" if all(ends) else "",
                "torch": run.torch if run else "",
                "notes": run.notes if run else (),
                "before": before,
            }
        )
        before = point.run
    return rows[::-1]


def change_rows(history: History) -> list[dict[str, Any]]:
    """What the table shows of each change, newest first."""
    metric = history.series.metric
    rows: list[dict[str, Any]] = []
    for change in reversed(history.found.changes):
        interval = change.interval
        rows.append(
            {
                "change": change,
                "towards": change.towards(metric),
                "size": format_percent(change.ratio - 1.0, signed=True),
                "interval": f"[{format_percent(interval.low - 1.0, signed=True)}, "
                f"{format_percent(interval.high - 1.0, signed=True)}]"
                if interval
                else "",
                "levels": [
                    _value_text(metric, point.value) for point in (change.before, change.after)
                ],
                "p": f"{change.p_value:.2g}",
            }
        )
    return rows


def history_data(history: History) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "series": encode(history.series),
        "points": encode(history.points),
        "changes": encode(history.found.changes),
        "metrics": list(history.metrics),
    }


def _value_text(metric: Metric, value: float | None) -> str:
    """A value of the metric for people."""
    if value is None:
        return ""
    if metric == "speedup":
        return f"{number_text(value)}x"
    if metric == "memory":
        return format_bytes(int(value))
    return format_duration(value if metric == "time" else value * 1e9)
