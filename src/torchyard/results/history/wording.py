"""The wording of a history and its changes, shared by all formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from torchyard.core.short_names import short_texts
from torchyard.core.units import format_bytes, format_count, format_duration, format_percent
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import number_text
from torchyard.results.model import ChangePoint, Metric, SeriesHistory, SeriesPoint

METRIC_NAMES: Final[dict[Metric, str]] = {
    "speedup": "speedup",
    "time": "time",
    "compile": "compile time",
    "memory": "peak memory",
}
METHOD: Final = (
    "Changes are detected by ranks (circular binary segmentation); p is the probability that a series "
    "without changes shows such a change."
)
_REVISION_LETTERS: Final = 12
_SMALLEST_P: Final = 1e-4


def with_short_names(histories: Sequence[SeriesHistory]) -> list[SeriesHistory]:
    """Return the histories with short names of user files, for people."""
    labels = short_texts(one.series.workload for one in histories)
    return [
        replace(one, series=replace(one.series, workload=labels[one.series.workload]))
        for one in histories
    ]


def series_title(history: SeriesHistory) -> str:
    """Return the title of a history."""
    series = history.series
    of = f"{METRIC_NAMES[series.metric]} of {series.candidate}"
    if series.metric == "speedup":
        of += f" over {series.baseline}"
    where = f" on {series.machine}" if series.machine else ""
    return one_line(f"{series.workload}: {of}{where}")


def changed_title(histories: Sequence[SeriesHistory], metric: Metric) -> str:
    """Return how many histories changed."""
    changed = sum(bool(one.changes) for one in histories)
    noun = "history" if len(histories) == 1 else "histories"
    return f"{changed} of {len(histories)} {noun} changed in {METRIC_NAMES[metric]}"


def counts_text(history: SeriesHistory) -> str:
    """Return the number of points, their period, and what was not analyzed."""
    parts = [format_count(len(history.points), "run")]
    if history.points:
        parts.append(f"{when_text(history.points[0])} to {when_text(history.points[-1])}")
    if history.left_out:
        every = "all" if history.left_out == len(history.points) else str(history.left_out)
        parts.append(f"{every} untrusted, not analyzed (--with-untrusted includes them)")
    if history.weak:
        parts.append(
            f"{len(history.weak)} more not significant after correction for all analyzed histories"
        )
    return "; ".join(parts)


def value_text(metric: Metric, value: float) -> str:
    """Format a value of the metric."""
    if metric == "speedup":
        return f"{number_text(value)}x"
    if metric == "memory":
        return format_bytes(value)
    return format_duration(value if metric == "time" else value * 1e9)


def change_size(change: ChangePoint) -> str:
    """Return the relative change."""
    return format_percent(change.ratio - 1.0, signed=True)


def change_interval(change: ChangePoint) -> str:
    """Return the confidence interval of the change; empty if there is none."""
    if change.interval is None:
        return ""
    ends = (change.interval.low, change.interval.high)
    return "[" + ", ".join(format_percent(end - 1.0, signed=True) for end in ends) + "]"


def change_levels(history: SeriesHistory, change: ChangePoint) -> tuple[float, float]:
    """Return the levels before and after a change; their ratio is the size of the change."""
    starts = [one.last for one in history.changes if one.last < change.position]
    points = history.points[max(starts, default=0) : change.position]
    before = median([one.value for one in points if not one.untrusted] or [change.before.value])
    return before, before * change.ratio


def p_text(change: ChangePoint) -> str:
    """Return the p-value, adjusted over all series if there are several."""
    p_value = change.p_value if change.p_adjusted is None else change.p_adjusted
    return f"< {_SMALLEST_P:g}" if p_value < _SMALLEST_P else f"{p_value:.2g}"


def revision_text(point: SeriesPoint) -> str:
    """Return the revision, or the run if the revision is unknown."""
    return one_line(point.revision)[:_REVISION_LETTERS] or one_line(point.run)


def range_text(change: ChangePoint) -> str:
    """Return the range of revisions that contains the cause, in git notation."""
    return f"{revision_text(change.before)}..{revision_text(change.after)}"


def when_text(point: SeriesPoint) -> str:
    """Return date and time to the minute, in UTC."""
    return one_line(point.started)[:16].replace("T", " ")


def change_sentence(change: ChangePoint, metric: Metric) -> str:
    """Return a sentence such as `speedup: step change of -12.3% [...], worse, in a1b..c2d (p ...)`."""
    name = METRIC_NAMES[metric]
    kind = "step change" if change.kind == "step" else f"drift over {_runs(change)} runs"
    return (
        f"{name}: {kind} of {change_size(change)} {change_interval(change)}, "
        f"{change.towards(metric)}, in {range_text(change)} (p {p_text(change)})"
    )


def _runs(change: ChangePoint) -> int:
    return math.floor(change.last - change.position + 1)
