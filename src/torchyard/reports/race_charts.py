"""The pictures of a race as Vega-Lite specs: how contenders stood over time, and at the end.

Knows the race alone; names are data of the specs and never code.
"""

from __future__ import annotations

import math
from typing import Any, Final

from torchyard.core.race import DEFAULT_NAME, Race
from torchyard.reports.race_text import last_standings

__all__ = ["race_spec", "standings_spec"]

_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#8c6d31"]
"""Okabe and Ito's, which colour-blind readers can tell apart."""
_UNTRUSTED: Final = "untrusted"
_KINDS: Final = {
    "alone, while racing": "#0072b2",
    "on fresh launches": "#d55e00",
    _UNTRUSTED: "var(--untrusted)",
}


def race_spec(race: Race) -> dict[str, Any]:
    """Speed against the default after each heat; a line ends where its contender left."""
    dimensions = {choice.name: choice.dimension for choice in race.space.choices}
    rows: list[dict[str, Any]] = [
        {
            "contender": one.contender,
            "dimension": dimensions.get(one.contender, "together"),
            "minutes": heat.ended_s / 60.0,
            "speedup": one.speedup,
            "launches": one.launches,
        }
        for heat in race.heats
        if heat.against == DEFAULT_NAME and heat.stage != "confirm"
        for one in heat.found
        if one.speedup is not None
    ]
    last = {row["contender"]: row for row in rows}
    names = sorted({str(row["dimension"]) for row in rows})
    x = {
        "field": "minutes",
        "type": "quantitative",
        "title": "minutes of measuring",
        "axis": {"tickCount": 10},
    }
    y = {
        "field": "speedup",
        "type": "quantitative",
        "title": "speed, the default is 1",
        "scale": {"zero": False},
    }
    colour = {
        "field": "dimension",
        "type": "nominal",
        "title": None,
        "scale": {
            "domain": names,
            "range": [_COLOURS[place % len(_COLOURS)] for place in range(len(names))],
        },
        "legend": {"orient": "bottom", "columns": 4},
    }
    detail = {"field": "contender", "type": "nominal"}
    return {
        "width": 680,
        "height": 320,
        "layer": [
            {
                "data": {"values": [{"speedup": 1.0}]},
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": "var(--muted)"},
                "encoding": {"y": y},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "line", "point": {"size": 22}, "strokeWidth": 1.5},
                "encoding": {"x": x, "y": y, "color": colour, "detail": detail},
            },
            {
                "data": {"values": [row for row in last.values() if row["launches"] > 1]},
                "mark": {"type": "text", "align": "left", "dx": 6, "limit": 140},
                "encoding": {"x": x, "y": y, "text": {"field": "contender", "type": "nominal"}},
            },
        ],
    }


def standings_spec(race: Race) -> dict[str, Any]:
    """The last interval of each contender, and of the winner on its fresh launches."""
    rows = [
        {
            "contender": one.contender,
            "speedup": one.speedup,
            "low": one.interval.low if one.interval is not None else one.speedup,
            "high": one.interval.high if one.interval is not None else one.speedup,
            "kind": _UNTRUSTED if one.untrusted else "alone, while racing",
        }
        for one in last_standings(race)
        if one.speedup is not None and math.isfinite(one.speedup)
    ]
    done = race.confirmed
    if done is not None and done.speedup is not None and done.interval is not None:
        rows.append(
            {
                "contender": f"{done.contender} (confirmed anew)",
                "speedup": done.speedup,
                "low": done.interval.low,
                "high": done.interval.high,
                "kind": _UNTRUSTED if done.untrusted else "on fresh launches",
            }
        )
    rows.sort(key=lambda row: -float(str(row["speedup"])))
    # Few launches give intervals beyond any picture: they are cut where speeds themselves end. The
    # last one is the answer, and is whole.
    seen = [1.0, *(float(str(row["speedup"])) for row in rows)]
    if done is not None and done.interval is not None:
        seen += [done.interval.low, done.interval.high]
    low, high = min(seen) * 0.95, max(seen) * 1.05
    for row in rows:
        row["low"], row["high"] = (
            max(low, float(str(row["low"]))),
            min(high, float(str(row["high"]))),
        )
    present = {str(row["kind"]) for row in rows}
    kinds = {kind: colour for kind, colour in _KINDS.items() if kind in present}
    y = {
        "field": "contender",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"labelLimit": 260},
    }
    scale = {"domain": [low, high], "zero": False, "nice": False}
    x = {"type": "quantitative", "title": "speed, the default is 1", "scale": scale}
    x["axis"] = {"tickCount": 10}
    colour = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {
            "domain": list(kinds),
            "range": list(kinds.values()),
        },
        "legend": {"orient": "bottom"},
    }
    return {
        "width": 520,
        "height": {"step": 20},
        "layer": [
            {
                "data": {"values": [{"at": 1.0}]},
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": "var(--muted)"},
                "encoding": {"x": {**x, "field": "at"}},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {
                    "y": y,
                    "x": {**x, "field": "low"},
                    "x2": {"field": "high"},
                    "color": colour,
                },
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "size": 55},
                "encoding": {"y": y, "x": {**x, "field": "speedup"}, "color": colour},
            },
        ],
    }
