"""The wording of a history and its changes, shared by all formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from torchyard.core.units import format_bytes, format_duration, format_percent
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import number_text
from torchyard.results.model import ChangePoint, Metric, SeriesHistory, SeriesPoint

__all__ = [
    "METHOD",
    "METRIC_NAMES",
    "chance_text",
    "change_interval",
    "change_sentence",
    "change_size",
    "changed_title",
    "counts_text",
    "range_text",
    "revision_text",
    "series_title",
    "value_text",
    "when_text",
]

METRIC_NAMES: Final[dict[Metric, str]] = {
    "speedup": "speedup",
    "time": "time",
    "compile": "compile time",
    "memory": "peak memory",
}
METHOD: Final = (
    "Changes are found by ranks (circular binary segmentation); p is the chance that a quiet series "
    "shows such a change."
)
_REVISION_LETTERS: Final = 12
_SMALLEST_P: Final = 1e-4


def series_title(history: SeriesHistory) -> str:
    """What the history is of."""
    series = history.series
    of = f"{METRIC_NAMES[series.metric]} of {series.candidate}"
    if series.metric == "speedup":
        of += f" over {series.baseline}"
    where = f" on {series.machine}" if series.machine else ""
    return one_line(f"{series.workload}: {of}{where}")


def changed_title(found: Sequence[SeriesHistory], metric: Metric) -> str:
    """How many histories changed."""
    changed = sum(bool(one.changes) for one in found)
    noun = "history" if len(found) == 1 else "histories"
    return f"{changed} of {len(found)} {noun} changed in {METRIC_NAMES[metric]}"


def counts_text(history: SeriesHistory) -> str:
    """How many points, and what was left out."""
    parts = [f"{len(history.points)} run{'s' if len(history.points) != 1 else ''}"]
    if history.points:
        parts.append(f"{when_text(history.points[0])} to {when_text(history.points[-1])}")
    if history.left_out:
        every = "all" if history.left_out == len(history.points) else str(history.left_out)
        parts.append(f"{every} untrusted, not judged (--with-untrusted judges them)")
    if history.weak:
        parts.append(
            f"{len(history.weak)} more would stand alone, but not among all histories looked at"
        )
    return "; ".join(parts)


def value_text(metric: Metric, value: float) -> str:
    """A value of the metric for people."""
    if metric == "speedup":
        return f"{number_text(value)}x"
    if metric == "memory":
        return format_bytes(value)
    return format_duration(value if metric == "time" else value * 1e9)


def change_size(change: ChangePoint) -> str:
    """By how much the value changed."""
    return format_percent(change.ratio - 1.0, signed=True)


def change_interval(change: ChangePoint) -> str:
    """The interval of that; empty when there is none."""
    if change.interval is None:
        return ""
    ends = (change.interval.low, change.interval.high)
    return "[" + ", ".join(format_percent(end - 1.0, signed=True) for end in ends) + "]"


def chance_text(change: ChangePoint) -> str:
    """The p-value, among all series where there were several."""
    chance = change.p_value if change.p_adjusted is None else change.p_adjusted
    return f"< {_SMALLEST_P:g}" if chance < _SMALLEST_P else f"{chance:.2g}"


def revision_text(point: SeriesPoint) -> str:
    """The revision, or the run where none is known."""
    return one_line(point.revision)[:_REVISION_LETTERS] or one_line(point.run)


def range_text(change: ChangePoint) -> str:
    """Where to look for the cause, as git writes a range."""
    return f"{revision_text(change.before)}..{revision_text(change.after)}"


def when_text(point: SeriesPoint) -> str:
    """Date and minute, UTC."""
    return one_line(point.started)[:16].replace("T", " ")


def change_sentence(change: ChangePoint, metric: Metric) -> str:
    """All of it in words."""
    name = METRIC_NAMES[metric]
    how = "changed at once" if change.kind == "step" else f"drifted over {_runs(change)} runs"
    return (
        f"{name} {how} by {change_size(change)} {change_interval(change)}, "
        f"{change.towards(metric)}, in {range_text(change)} (p {chance_text(change)})"
    )


def _runs(change: ChangePoint) -> int:
    return math.floor(change.last - change.position + 1)
