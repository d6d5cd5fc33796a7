"""The chart of a null sweep: where its p-values lie. Gives a Vega-Lite spec; knows no page."""

from __future__ import annotations

from typing import Any, Final

from torchyard.core.sweep_summary import FalseAlarms

__all__ = ["p_values_description", "p_values_spec"]

_WIDTH, _HEIGHT = 420, 150
_GAP: Final = 0.006


def p_values_spec(alarms: FalseAlarms) -> dict[str, Any]:
    """One bar for each tenth, and the line at which all would be if they were even."""
    bins = len(alarms.bins)
    bars = [
        {"from": place / bins + _GAP, "to": (place + 1) / bins - _GAP, "count": count, "zero": 0}
        for place, count in enumerate(alarms.bins)
    ]
    even = alarms.comparisons / bins
    x = {
        "field": "from",
        "type": "quantitative",
        "title": "p-value",
        "scale": {"domain": [0, 1], "nice": False},
        "axis": {"tickCount": 10, "grid": False},
    }
    y = {
        "field": "count",
        "type": "quantitative",
        "title": "comparisons",
        "scale": {"domain": [0, max(*alarms.bins, even, 1)]},
        "axis": {"tickMinStep": 1, "tickCount": 4, "format": "d", "domain": False},
    }
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "layer": [
            {
                "data": {"values": bars},
                "mark": {"type": "rect", "color": "var(--candidate)"},
                "encoding": {"x": x, "x2": {"field": "to"}, "y": y, "y2": {"field": "zero"}},
            },
            {
                "data": {"values": [{"even": even}]},
                "mark": {"type": "rule", "color": "var(--text)", "strokeDash": [4, 3]},
                "encoding": {"y": {"field": "even", "type": "quantitative"}},
            },
        ],
    }


def p_values_description(alarms: FalseAlarms) -> str:
    """The chart in words, for who does not see it."""
    bins = len(alarms.bins)
    counts = ", ".join(
        f"{count} up to {(place + 1) / bins:.1f}" for place, count in enumerate(alarms.bins)
    )
    return f"p-values of {alarms.comparisons} comparisons: {counts}. Even would be {alarms.comparisons / bins:.1f} each."
