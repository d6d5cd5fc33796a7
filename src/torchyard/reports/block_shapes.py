"""The shapes of the charts of one comparison's blocks, as Vega-Lite without its data.

A page holds each shape once; `block_charts.py` gives the numbers. Fields and expressions are ours:
what comes from outside (reasons, units) is data, in rows or in parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["BASES"]

_SIDES: Final = {
    "domain": ["baseline", "candidate"],
    "range": ["var(--baseline)", "var(--candidate)"],
}
_SHAPES: Final = {"domain": ["baseline", "candidate"], "range": ["circle", "triangle-up"]}

_LAUNCH_BANDS: Final[dict[str, Any]] = {
    "transform": [
        {
            "aggregate": [
                {"op": "min", "field": "order", "as": "first"},
                {"op": "max", "field": "order", "as": "last"},
            ],
            "groupby": ["launch"],
        },
        {"calculate": "datum.first - 0.5", "as": "left"},
        {"calculate": "datum.last + 0.5", "as": "right"},
    ],
    "layer": [
        {
            "transform": [{"filter": "datum.launch % 2 == 1"}],
            "mark": {"type": "rect", "color": "var(--band)", "opacity": 1},
            "encoding": {
                "x": {"field": "left", "type": "quantitative"},
                "x2": {"field": "right"},
            },
        },
        {
            "mark": {
                "type": "text",
                "align": "left",
                "baseline": "bottom",
                "dx": 2,
                "color": "var(--muted)",
                "fontSize": 10,
            },
            "encoding": {
                "x": {"field": "left", "type": "quantitative"},
                "y": {"value": -2},
                "text": {"field": "launch", "type": "quantitative"},
            },
        },
    ],
}

_ORDER_AXIS: Final[dict[str, Any]] = {
    "field": "order",
    "type": "quantitative",
    "title": "in time order; launches numbered above",
    "scale": {"nice": False, "padding": 4},
    "axis": {"grid": False, "labels": False, "ticks": False},
}

_SAMPLES: Final[dict[str, Any]] = {
    "width": "container",
    "height": 190,
    "params": [{"name": "reasons", "value": [""]}, {"name": "unit", "value": ""}],
    "transform": [
        {"flatten": ["time"]},
        {"window": [{"op": "row_number", "as": "order"}]},
        {"calculate": "datum.side == 'b' ? 'baseline' : 'candidate'", "as": "variant"},
        {"calculate": "reasons[datum.dirty]", "as": "reason"},
        {"calculate": "datum.dirty > 0 ? 'disturbed: ' + datum.reason : 'clean'", "as": "block"},
        {"calculate": "format(datum.time, '.4~g') + ' ' + unit", "as": "said"},
    ],
    "layer": [
        _LAUNCH_BANDS,
        {
            "mark": {"type": "point", "size": 24, "filled": False},
            "encoding": {
                "x": _ORDER_AXIS,
                "y": {
                    "field": "time",
                    "type": "quantitative",
                    "scale": {"zero": False, "padding": 6},
                    "title": None,
                    "axis": {"labelExpr": "datum.label + ' ' + unit", "tickCount": 5},
                },
                "stroke": {"field": "variant", "scale": _SIDES, "legend": None},
                "fill": {"field": "variant", "scale": _SIDES, "legend": None},
                "shape": {"field": "variant", "scale": _SHAPES, "legend": None},
                "fillOpacity": {
                    "condition": {"test": "datum.dirty > 0", "value": 0},
                    "value": 0.75,
                },
                "strokeWidth": {"condition": {"test": "datum.dirty > 0", "value": 1.1}, "value": 0},
                "tooltip": [
                    {"field": "variant", "title": "side"},
                    {"field": "said", "title": "time"},
                    {"field": "launch", "title": "launch"},
                    {"field": "block", "title": "block"},
                ],
            },
        },
    ],
}

_LAUNCHES: Final[dict[str, Any]] = {
    "width": "container",
    "height": 170,
    "params": [
        {"name": "low", "value": 1},
        {"name": "high", "value": 1},
        {"name": "speedup", "value": 1},
        {"name": "bottom", "value": 0.9},
        {"name": "top", "value": 1.1},
        {"name": "ticks", "value": [1]},
    ],
    "transform": [
        {"flatten": ["ratio"]},
    ],
    "layer": [
        {
            "data": {"values": [{}]},
            "transform": [
                {"calculate": "low", "as": "low"},
                {"calculate": "high", "as": "high"},
            ],
            "mark": {
                "type": "rect",
                "color": "var(--accent)",
                "opacity": {"expr": "high > low ? 0.16 : 0"},
            },
            "encoding": {
                "y": {"field": "low", "type": "quantitative"},
                "y2": {"field": "high"},
            },
        },
        {
            "data": {"values": [{"one": 1}]},
            "mark": {"type": "rule", "color": "var(--muted)", "strokeDash": [3, 3], "clip": True},
            "encoding": {"y": {"field": "one", "type": "quantitative"}},
        },
        {
            "data": {"values": [{}]},
            "transform": [{"calculate": "speedup", "as": "speedup"}],
            "mark": {
                "type": "rule",
                "color": "var(--accent)",
                "strokeWidth": 1.5,
                "opacity": {"expr": "speedup > bottom ? 1 : 0"},
            },
            "encoding": {"y": {"field": "speedup", "type": "quantitative"}},
        },
        {
            "mark": {"type": "tick", "thickness": 1.3, "size": 13, "color": "var(--muted)"},
            "encoding": {
                "x": {
                    "field": "launch",
                    "type": "ordinal",
                    "title": "launch",
                    "axis": {"labelAngle": 0, "labelOverlap": True, "ticks": False},
                },
                "y": {
                    "field": "ratio",
                    "type": "quantitative",
                    "title": None,
                    "scale": {
                        "type": "log",
                        "nice": False,
                        "domainMin": {"expr": "bottom"},
                        "domainMax": {"expr": "top"},
                    },
                    "axis": {
                        "values": {"expr": "ticks"},
                        "labelExpr": "format(datum.value, '.4~g') + 'x'",
                    },
                },
                "opacity": {"value": 0.75},
            },
        },
        {
            "transform": [
                {
                    "aggregate": [
                        {"op": "max", "field": "middle", "as": "middle"},
                        {"op": "count", "as": "pairs"},
                    ],
                    "groupby": ["launch"],
                },
                {"calculate": "format(datum.middle, '.3f') + 'x'", "as": "said"},
            ],
            "mark": {
                "type": "point",
                "size": 70,
                "opacity": 1,
                "color": "var(--candidate)",
                "stroke": "var(--card)",
                "strokeWidth": 1.2,
            },
            "encoding": {
                "x": {"field": "launch", "type": "ordinal"},
                "y": {"field": "middle", "type": "quantitative"},
                "tooltip": [
                    {"field": "launch", "title": "launch"},
                    {"field": "said", "title": "speedup"},
                ],
            },
        },
    ],
}

_DISTURBANCES: Final[dict[str, Any]] = {
    "width": "container",
    "height": 20,
    "params": [{"name": "reasons", "value": [""]}],
    "transform": [
        {"flatten": ["why"]},
        {"calculate": "reasons[datum.why]", "as": "reason"},
        {"calculate": "datum.side == 'b' ? 'baseline' : 'candidate'", "as": "variant"},
    ],
    "layer": [
        _LAUNCH_BANDS,
        {
            "transform": [{"filter": "datum.why > 0"}],
            "mark": {"type": "point", "size": 34, "opacity": 0.9},
            "encoding": {
                "x": _ORDER_AXIS,
                "y": {
                    "field": "reason",
                    "type": "nominal",
                    "title": None,
                    "axis": {
                        "grid": True,
                        "labelLimit": 150,
                        "labelColor": "var(--text)",
                        "ticks": False,
                        "domain": False,
                    },
                },
                "color": {"field": "variant", "scale": _SIDES, "legend": None},
                "shape": {"field": "variant", "scale": _SHAPES, "legend": None},
                "tooltip": [
                    {"field": "reason", "title": "why"},
                    {"field": "variant", "title": "side"},
                    {"field": "launch", "title": "launch"},
                ],
            },
        },
    ],
}

BASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "samples": _SAMPLES,
    "launches": _LAUNCHES,
    "disturbances": _DISTURBANCES,
}
