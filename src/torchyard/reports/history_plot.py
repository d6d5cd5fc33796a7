"""A history as a small picture of text: points over runs, with the changes marked below.

Columns are runs, or groups of neighbouring runs when there are more runs than columns. Knows
nothing of terminals beyond their width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from torchyard.core.change import SeriesHistory
from torchyard.core.stored import SeriesPoint
from torchyard.reports.history_wording import value_text

__all__ = ["plot_lines"]

_HEIGHT: Final = 10
_SHOWN_SHARE: Final = 0.98
"""The axis holds this share of the points; what lies beyond is put at the edge."""
_POINT, _UNTRUSTED, _STEP, _DRIFT, _EDGE = "•", "○", "▲", "~", "│"
_ASCII: Final = str.maketrans({_POINT: "*", _UNTRUSTED: "o", _STEP: "^", _EDGE: "|", "µ": "u"})


@dataclass(frozen=True, kw_only=True)
class _Column:
    value: float | None
    untrusted: float | None
    mark: str


def plot_lines(history: SeriesHistory, *, width: int = 100, ascii_only: bool = False) -> list[str]:
    """The picture, top to bottom; empty when there are no points."""
    if not history.points:
        return []
    judged = [point.value for point in history.points if not point.untrusted]
    low, high = _reach(judged or [point.value for point in history.points])
    ends = [value_text(history.series.metric, value) for value in (high, low)]
    margin = max(map(len, ends))
    columns = _columns(history, max(width - margin - 3, 10))
    rows = []
    for row in range(_HEIGHT):
        label = ends[0] if row == 0 else ends[1] if row == _HEIGHT - 1 else ""
        cells = "".join(_cell(column, row, low, high) for column in columns)
        rows.append(f"{label:>{margin}} {_EDGE}{cells}".rstrip())
    marks = "".join(column.mark for column in columns).rstrip()
    if marks:
        rows.append(f"{'':>{margin}} {_EDGE}{marks}")
    return [line.translate(_ASCII) for line in rows] if ascii_only else rows


def _reach(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    cut = int(len(ordered) * (1.0 - _SHOWN_SHARE) / 2.0)
    low, high = ordered[cut], ordered[-1 - cut]
    spare = max((high - low) * 0.05, abs(high) * 0.005)
    return low - spare, high + spare


def _columns(history: SeriesHistory, width: int) -> list[_Column]:
    together = -(-len(history.points) // width)
    wide = 2 if together == 1 and 2 * len(history.points) <= width else 1
    starts = {change.position: _STEP for change in history.changes if change.kind == "step"}
    columns = []
    for first in range(0, len(history.points), together):
        places = range(first, min(first + together, len(history.points)))
        mark = next((starts[place] for place in places if place in starts), " ")
        if mark == " " and any(
            change.kind == "drift" and change.position <= place <= change.last
            for place in places
            for change in history.changes
        ):
            mark = _DRIFT
        points = [history.points[place] for place in places]
        columns.append(
            _Column(
                value=_middle(points, untrusted=False),
                untrusted=_middle(points, untrusted=True),
                mark=mark,
            )
        )
        columns += [_Column(value=None, untrusted=None, mark=_DRIFT if mark == _DRIFT else " ")] * (
            wide - 1
        )
    return columns


def _middle(points: Sequence[SeriesPoint], *, untrusted: bool) -> float | None:
    values = [point.value for point in points if point.untrusted is untrusted]
    return median(values) if values else None


def _cell(column: _Column, row: int, low: float, high: float) -> str:
    for value, mark in ((column.value, _POINT), (column.untrusted, _UNTRUSTED)):
        if value is not None:
            share = min(max((high - value) / (high - low), 0.0), 1.0)
            if round(share * (_HEIGHT - 1)) == row:
                return mark
    return " "
