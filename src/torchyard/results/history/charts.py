"""Charts of a history: a Vega-Lite specification for pages, and a plot in plain text.

Large numbers of points are thinned, which the description states. The text plot has one column per run, or per group
of adjacent runs, with the changes marked below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from torchyard.results.history.changes import (
    METRIC_NAMES,
    change_sentence,
    change_size,
    revision_text,
    value_text,
    when_text,
)
from torchyard.results.model import Metric, SeriesHistory, SeriesPoint

_PLOT_HEIGHT: Final = 10
_SHOWN_SHARE: Final = 0.98
"""Share of the points within the axis; others are drawn at the edge."""
_POINT, _UNTRUSTED, _STEP, _DRIFT, _EDGE = "•", "○", "▲", "~", "│"
_ASCII: Final = str.maketrans({_POINT: "*", _UNTRUSTED: "o", _STEP: "^", _EDGE: "|", "µ": "u"})


@dataclass(frozen=True, kw_only=True)
class _Column:
    value: float | None
    untrusted: float | None
    mark: str


def plot_lines(history: SeriesHistory, *, width: int = 100, ascii_only: bool = False) -> list[str]:
    """Return the lines of the plot, top to bottom; empty if there are no points."""
    if not history.points:
        return []
    low, high = _value_range(_trusted_values(history), margin=0.05, least=0.005)
    ends = [value_text(history.series.metric, value) for value in (high, low)]
    margin = max(map(len, ends))
    columns = _columns(history, max(width - margin - 3, 10))
    rows = []
    for row in range(_PLOT_HEIGHT):
        label = ends[0] if row == 0 else ends[1] if row == _PLOT_HEIGHT - 1 else ""
        cells = "".join(_cell(column, row, low, high) for column in columns)
        rows.append(f"{label:>{margin}} {_EDGE}{cells}".rstrip())
    marks = "".join(column.mark for column in columns).rstrip()
    if marks:
        rows.append(f"{'':>{margin}} {_EDGE}{marks}")
    return [line.translate(_ASCII) for line in rows] if ascii_only else rows


def _value_range(values: Sequence[float], *, margin: float, least: float) -> tuple[float, float]:
    """Return the range of the values without outliers, which would flatten the chart."""
    ordered = sorted(values)
    cut = int(len(ordered) * (1.0 - _SHOWN_SHARE) / 2.0)
    low, high = ordered[cut], ordered[-1 - cut]
    spare = max((high - low) * margin, abs(high) * least)
    return low - spare, high + spare


def _columns(history: SeriesHistory, width: int) -> list[_Column]:
    per_column = -(-len(history.points) // width)
    wide = 2 if per_column == 1 and 2 * len(history.points) <= width else 1
    starts = {change.position: _STEP for change in history.changes if change.kind == "step"}
    columns = []
    for first in range(0, len(history.points), per_column):
        indices = range(first, min(first + per_column, len(history.points)))
        mark = next((starts[index] for index in indices if index in starts), " ")
        if mark == " " and any(
            change.kind == "drift" and change.position <= index <= change.last
            for index in indices
            for change in history.changes
        ):
            mark = _DRIFT
        points = [history.points[index] for index in indices]
        columns.append(
            _Column(
                value=_median(points, untrusted=False),
                untrusted=_median(points, untrusted=True),
                mark=mark,
            )
        )
        columns += [_Column(value=None, untrusted=None, mark=_DRIFT if mark == _DRIFT else " ")] * (
            wide - 1
        )
    return columns


def _median(points: Sequence[SeriesPoint], *, untrusted: bool) -> float | None:
    values = [point.value for point in points if point.untrusted is untrusted]
    return median(values) if values else None


def _cell(column: _Column, row: int, low: float, high: float) -> str:
    for value, mark in ((column.value, _POINT), (column.untrusted, _UNTRUSTED)):
        if value is not None:
            share = min(max((high - value) / (high - low), 0.0), 1.0)
            if round(share * (_PLOT_HEIGHT - 1)) == row:
                return mark
    return " "


MOST_POINTS: Final = 1000
"""If there are more points, only every n-th is drawn; changes are based on all points."""
_WIDTH, _CHART_HEIGHT = 860, 260
_LABEL_LETTERS: Final = 10
_UNITS: Final[dict[Metric, tuple[float, str]]] = {
    "speedup": (1.0, "speedup"),
    "time": (1e-6, "time (ms)"),
    "compile": (1.0, "compile time (s)"),
    "memory": (1.0 / 2**20, "peak memory (MiB)"),
}


def place_axis(*, dated: bool) -> dict[str, Any]:
    """Return the axis of runs; the parameter `names` of the chart has their dates or revisions."""
    return {
        "field": "place",
        "type": "quantitative",
        "title": f"{'date' if dated else 'revision'}, oldest first",
        "axis": {
            "grid": False,
            "tickMinStep": 1,
            "labelExpr": "names[datum.value] || ''",
            "labelOverlap": True,
        },
        "scale": {"nice": False, "padding": 12},
    }


def history_spec(history: SeriesHistory) -> dict[str, Any]:
    """Return a layered Vega-Lite chart; external text is only in its data."""
    metric = history.series.metric
    scale, title = _UNITS[metric]
    ends = _ends(history, scale)
    dated, names = _point_names(history)
    x = place_axis(dated=dated)
    y = {
        "type": "quantitative",
        "title": title,
        "scale": {"domain": list(ends), "clamp": True, "nice": False},
        "axis": {"tickCount": 6, "domain": False},
    }
    tooltip = [
        {"field": name, "type": "nominal", "title": name}
        for name in ("started", "revision", "run", "value", "state")
    ]
    changes = [
        {
            "from": change.position - 0.5 if change.kind == "step" else change.position,
            "to": change.last + (0.5 if change.kind == "drift" else -0.5),
            "kind": change.kind,
            "towards": change.towards(metric),
            "size": change_size(change),
            "text": change_sentence(change, metric),
        }
        for change in history.changes
    ]
    colour = {
        "field": "towards",
        "type": "nominal",
        "scale": {"domain": ["better", "worse"], "range": ["var(--faster)", "var(--slower)"]},
        "legend": None,
    }
    change_tooltip = [{"field": "text", "type": "nominal", "title": "change"}]
    start = {**x, "field": "from"}
    rows = _rows(history, scale, ends)
    return {
        "width": _WIDTH,
        "height": _CHART_HEIGHT,
        "data": {"values": rows},
        "params": [{"name": "names", "value": names}],
        "layer": _with_data(
            rows,
            {
                "data": {"values": [one for one in changes if one["kind"] == "drift"]},
                "mark": {"type": "rect", "opacity": 0.16},
                "encoding": {
                    "x": start,
                    "x2": {"field": "to"},
                    "color": colour,
                    "tooltip": change_tooltip,
                },
            },
            {
                "data": {"values": [one for one in changes if one["kind"] == "step"]},
                "mark": {"type": "rule", "strokeWidth": 2, "strokeDash": [5, 3]},
                "encoding": {"x": start, "color": colour, "tooltip": change_tooltip},
            },
            {
                "transform": [{"filter": "datum.low != null"}],
                "mark": {"type": "rule", "color": "var(--muted)", "opacity": 0.55},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
            {
                "data": {"values": _levels(history, scale)},
                "mark": {"type": "rule", "color": "var(--text)", "strokeWidth": 2, "opacity": 0.8},
                "encoding": {"x": start, "x2": {"field": "to"}, "y": {**y, "field": "level"}},
            },
            {
                "mark": {"type": "point", "size": 34, "strokeWidth": 1.4, "opacity": 1},
                "encoding": {
                    "x": x,
                    "y": {**y, "field": "number"},
                    "stroke": {"value": "var(--accent)"},
                    "fill": {
                        "condition": {"test": "datum.untrusted", "value": "var(--page)"},
                        "value": "var(--accent)",
                    },
                    "shape": {
                        "condition": {"test": "datum.beyond", "value": "triangle-up"},
                        "value": "circle",
                    },
                    "tooltip": tooltip,
                },
            },
            {
                "data": {"values": changes},
                "mark": {
                    "type": "text",
                    "align": "left",
                    "dx": 5,
                    "dy": 8,
                    "baseline": "top",
                    "fontWeight": "bold",
                },
                "encoding": {"x": start, "y": {"value": 0}, "text": {"field": "size"}},
            },
        ),
    }


def _point_names(history: SeriesHistory) -> tuple[bool, dict[str, str]]:
    """Return whether points are named by date, because revisions repeat, and their names."""
    revisions = [point.revision for point in history.points]
    dated = not all(revisions) or len(set(revisions)) < len(revisions)
    step = -(-len(revisions) // MOST_POINTS)
    return dated, {
        str(place): when_text(point)[:10] if dated else revision_text(point)[:_LABEL_LETTERS]
        for place, point in enumerate(history.points)
        if place % step == 0
    }


def history_description(history: SeriesHistory) -> str:
    """Describe the chart as text."""
    metric = history.series.metric
    count = len(history.points)
    parts = [f"{METRIC_NAMES[metric]} of {count} runs, oldest first"]
    every = _every(count)
    if every > 1:
        parts.append(f"every {every}th run is drawn; changes are based on all runs")
    if history.left_out:
        parts.append("hollow points are untrusted and not analyzed")
    ends = _ends(history, 1.0)
    if any(not ends[0] <= point.value <= ends[1] for point in history.points):
        parts.append("triangles are outside the axis range")
    parts += [change_sentence(change, metric) for change in history.changes]
    return "; ".join(parts if history.changes else [*parts, "no change detected"])


def _with_data(rows: list[dict[str, Any]], *layers: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the layers that have data: Vega warns about empty scales."""
    intervals = any(row["low"] is not None for row in rows)
    return [
        layer
        for layer in layers
        if (layer["data"]["values"] if "data" in layer else intervals or "transform" not in layer)
    ]


def _every(count: int) -> int:
    return -(-count // MOST_POINTS) or 1


def _ends(history: SeriesHistory, scale: float) -> tuple[float, float]:
    """Return the axis range."""
    low, high = _value_range(_trusted_values(history), margin=0.15, least=0.01)
    return low * scale, high * scale


def _trusted_values(history: SeriesHistory) -> list[float]:
    """Return the trusted values; all values if none is trusted."""
    trusted = [point.value for point in history.points if not point.untrusted]
    return trusted or [point.value for point in history.points] or [1.0]


def _rows(history: SeriesHistory, scale: float, ends: tuple[float, float]) -> list[dict[str, Any]]:
    places = range(0, len(history.points), _every(len(history.points)))
    return [
        {
            "place": place,
            "number": point.value * scale,
            "low": None if None in (point.low, point.high) else (point.low or 0.0) * scale,
            "high": None if None in (point.low, point.high) else (point.high or 0.0) * scale,
            "untrusted": point.untrusted,
            "started": when_text(point),
            "revision": revision_text(point),
            "run": point.run,
            "value": value_text(history.series.metric, point.value),
            "state": "untrusted, not analyzed" if point.untrusted else "analyzed",
            "beyond": not ends[0] <= point.value * scale <= ends[1],
        }
        for place, point in ((place, history.points[place]) for place in places)
    ]


def _levels(history: SeriesHistory, scale: float) -> list[dict[str, Any]]:
    """Return the medians between changes; a drift has none."""
    ends = [0]
    for change in history.changes:
        ends += [change.position, change.last] if change.kind == "drift" else [change.position] * 2
    ends.append(len(history.points))
    levels = []
    for number, (start, end) in enumerate(pairwise(ends)):
        values = [point.value for point in history.points[start:end] if not point.untrusted]
        # Every second section is a change itself: empty for a step, the slope of a drift.
        if number % 2 == 0 and values:
            levels.append({"from": start - 0.5, "to": end - 0.5, "level": median(values) * scale})
    return levels
