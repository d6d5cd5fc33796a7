"""Charts of a whole run: the forest plot of speedups and the verdicts of each suite.

Drawn when the page is written, so that they work without a script and in print. Returns Vega-Lite
specs; independent of the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from torchyard.bench.report.suite_summary import SuiteMean, SuiteRow
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.units import format_percent
from torchyard.presentation.chart_layout import axis_numbers, numbers_of, speedup_axis
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.vega_spec import (
    Spec,
    category,
    layer,
    mark,
    parameters,
    quantity,
    scale,
)
from torchyard.presentation.wording import MARKS, number_text, speedup_text, title_of

ROWS_NAMED: Final = 40
"""A forest plot with more comparisons than this is drawn as a curve without names."""
_WIDTH: Final = 560
_CURVE_WIDTH, _CURVE_HEIGHT = 900, 300
_ROW: Final = 19
_NARROW_WIDTH: Final = 320
_NARROW_ROW: Final = 54
_LABEL_WIDTH: Final = 330
_MEAN: Final = "mean"
_PLOTTED: Final = (
    Verdict.FASTER,
    Verdict.SLOWER,
    Verdict.SAME,
    Verdict.UNDECIDED,
    Verdict.UNTRUSTED,
)
_KINDS: Final = [*(verdict.value for verdict in _PLOTTED), _MEAN]
_COLORS: Final = [*(f"var(--{verdict.value})" for verdict in _PLOTTED), "var(--text)"]
_SHAPES: Final = ["triangle-up", "triangle-down", "square", "circle", "cross", "diamond"]


def forest_spec(
    comparisons: Sequence[Comparison],
    means: Sequence[SuiteMean],
    *,
    margin: float,
    narrow: bool = False,
) -> Spec:
    """Return the forest plot: speedups with intervals, fastest first, then untrusted ones, then the means.

    More than `ROWS_NAMED` comparisons are drawn as one curve. For narrow screens, name and numbers
    of a row are above its interval instead of beside it.
    """
    plotted = sorted(
        (one for one in comparisons if numbers_of(one)),
        key=lambda one: (not one.trusted, -numbers_of(one)[0]),
    )
    if len(plotted) > ROWS_NAMED:
        return _curve_spec(plotted, margin=margin, width=_NARROW_WIDTH if narrow else _CURVE_WIDTH)
    several = len({one.candidate for one in plotted}) > 1
    rows: list[Spec] = [_row(place, one, several=several) for place, one in enumerate(plotted)]
    rows += [
        {
            "place": len(plotted) + index,
            "label": f"geometric mean, {one_line(mean.candidate)}",
            "kind": _MEAN,
            "speedup": mean.speedup,
            "low": mean.interval.low,
            "high": mean.interval.high,
            "text": f"{number_text(mean.speedup)}x "
            f"[{number_text(mean.interval.low)}, {number_text(mean.interval.high)}]",
        }
        for index, mean in enumerate(means)
    ]
    axis = speedup_axis([1.0, *axis_numbers(plotted)])
    ends = [math.exp(axis.low), math.exp(axis.high)]
    for row in rows:
        # A logarithmic axis cannot show 0 or infinity: clamp values to its ends.
        row.update(
            {key: min(max(row[key], ends[0]), ends[1]) for key in ("speedup", "low", "high")}
        )
    # Rows are keyed by position, because two rows may have the same label.
    names = {str(row["place"]): row["label"] for row in rows}
    x = {
        "type": "quantitative",
        "scale": {"type": "log", "domain": ends, "nice": False, "clamp": True},
        "title": "speedup over the baseline (logarithmic)",
        "axis": {
            "values": axis.numbers,
            "format": ".4~g",
            "labelExpr": "datum.label + 'x'",
            "grid": True,
            "domain": False,
        },
    }
    y = {
        "field": "place",
        "type": "ordinal",
        "title": None,
        "axis": None if narrow else _name_axis(_LABEL_WIDTH),
    }
    color = {"field": "kind", "scale": scale(_KINDS, _COLORS), "legend": None}
    hollow = "datum.kind == 'undecided' || datum.kind == 'untrusted'"
    texts = [_text_layer(y, "text", x=_WIDTH, align="left", dx=12, color="var(--muted)")]
    if narrow:  # on two lines above the interval
        texts = [
            _text_layer(y, "label", x=0, align="left", dy=-27, color="var(--text)"),
            _text_layer(y, "text", x=0, align="left", dy=-13, color="var(--muted)"),
        ]
    return {
        "width": _NARROW_WIDTH if narrow else _WIDTH,
        "height": {"step": _NARROW_ROW if narrow else _ROW},
        "data": {"values": rows},
        "params": parameters(names=names),
        "layer": [
            *_margin_layers("x", x, margin, ends),
            layer(
                mark("rule", strokeWidth=2.2, strokeCap="round"),
                x={**x, "field": "low"},
                x2={"field": "high"},
                y=y,
                color=color,
                strokeDash={
                    "condition": {"test": "datum.kind == 'untrusted'", "value": [2, 4]},
                    "value": [1, 0],
                },
            ),
            layer(
                mark("point", size=64, opacity=1, strokeWidth=1.6, filled=False),
                x={**x, "field": "speedup"},
                y=y,
                stroke=color,
                shape={"field": "kind", "scale": scale(_KINDS, _SHAPES), "legend": None},
                fill={"condition": {"test": hollow, "value": "var(--page)"}, **color},
            ),
            *texts,
        ],
    }


def _name_axis(label_width: int) -> Spec:
    """Return the axis of rows that have a position, with their names."""
    return {
        "labelExpr": "names[datum.value]",
        "labelLimit": label_width,
        "labelColor": "var(--text)",
        "labelFontSize": 12,
        "ticks": False,
        "domain": False,
        "labelPadding": 10,
    }


def _margin_layers(channel: str, axis: Spec, margin: float, ends: Sequence[float]) -> list[Spec]:
    """Return the band of speedups that count as the same, and the line at 1."""
    band = {"low": max(1 - margin, ends[0]), "high": min(1 + margin, ends[1])}
    bounds: Spec = {channel: {**axis, "field": "low"}, f"{channel}2": {"field": "high"}}
    line: Spec = {channel: quantity("one")}
    return [
        layer(mark("rect", color="var(--band)", opacity=1), values=[band], **bounds),
        layer(mark("rule", color="var(--muted)"), values=[{"one": 1}], **line),
    ]


def _text_layer(y: Spec, field: str, *, x: float, **properties: Any) -> Spec:
    return layer(
        mark("text", fontSize=11, limit=_NARROW_WIDTH, **properties),
        x={"value": x},
        y=y,
        text=category(field),
    )


def _curve_spec(plotted: Sequence[Comparison], *, margin: float, width: float) -> Spec:
    """Return all speedups in descending order as one curve."""
    rows = [_row(place, one, several=False) for place, one in enumerate(plotted)]
    for row in rows:
        del row["label"], row["text"]
    axis = speedup_axis([1.0, *axis_numbers(plotted)])
    ends = [math.exp(axis.low), math.exp(axis.high)]
    color = {
        "field": "kind",
        "scale": scale(_KINDS[:-1], _COLORS[:-1]),
        "legend": {"title": None, "orient": "top", "symbolType": "square"},
    }
    x = quantity(
        "place",
        title=f"{len(rows)} comparisons, fastest first",
        scale={"domain": [-1, len(rows)], "nice": False},
        axis={"labels": False, "ticks": False, "grid": False},
    )
    y = {
        "type": "quantitative",
        "title": "speedup (logarithmic)",
        "scale": {"type": "log", "domain": ends, "nice": False, "clamp": True},
        "axis": {
            "values": axis.numbers,
            "labelExpr": "format(datum.value, '.4~g') + 'x'",
            "domain": False,
        },
    }
    return {
        "width": width,
        "height": _CURVE_HEIGHT,
        "data": {"values": rows},
        "layer": [
            *_margin_layers("y", y, margin, ends),
            layer(
                mark("rule", strokeWidth=1.2, opacity=0.75),
                x=x,
                y={**y, "field": "low"},
                y2={"field": "high"},
                color=color,
            ),
            layer(mark("point", size=22, opacity=1), x=x, y={**y, "field": "speedup"}, color=color),
        ],
    }


def verdicts_spec(rows: Sequence[SuiteRow], *, narrow: bool = False) -> Spec:
    """Return one bar per suite and candidate, with the share of each verdict."""
    several = len({row.candidate for row in rows}) > 1
    names = {
        str(place): one_line(row.suite + (f" · {row.candidate}" if several else ""))
        for place, row in enumerate(rows)
    }
    values = [
        {
            "place": place,
            "rank": rank,
            "verdict": verdict.value,
            "share": count / row.total,
            "text": f"{MARKS[verdict]} {count}",
        }
        for place, row in enumerate(rows)
        for rank, verdict in enumerate(Verdict)
        if (count := row.counts.get(verdict, 0))
    ]
    verdicts = [verdict.value for verdict in Verdict if any(verdict in row.counts for row in rows)]
    y = {
        "field": "place",
        "type": "ordinal",
        "title": None,
        "axis": _name_axis(110 if narrow else 200),
    }
    x = quantity("share", stack="zero", axis=None)
    return {
        "width": 200 if narrow else _WIDTH,
        "height": {"step": 30},
        "data": {"values": values},
        "params": parameters(names=names),
        "encoding": {"order": {"field": "rank"}},
        "layer": [
            layer(
                mark("bar", stroke="var(--page)", strokeWidth=2, height=22),
                x=x,
                y=y,
                color={
                    "field": "verdict",
                    "scale": scale(verdicts, [f"var(--{verdict})" for verdict in verdicts]),
                    "legend": {
                        "orient": "bottom",
                        "title": None,
                        "symbolType": "square",
                        "columnPadding": 14,
                        "columns": 3 if narrow else len(verdicts),
                    },
                },
            ),
            layer(
                mark("text", color="var(--page)", fontSize=11.5, fontWeight=600),
                transform=[{"filter": "datum.share >= 0.045"}],
                x={**x, "bandPosition": 0.5},
                y=y,
                detail={"field": "verdict"},
                text=category("text"),
            ),
        ],
    }


def forest_description(comparisons: Sequence[Comparison], *, margin: float) -> str:
    """Describe the forest plot in words, for screen readers."""
    count = sum(bool(numbers_of(one)) for one in comparisons)
    noun = "comparison" if count == 1 else "comparisons"
    return (
        f"Speedups of {count} {noun} with confidence intervals on a logarithmic axis; "
        f"the band is ±{format_percent(margin)}. All numbers are in the table below."
    )


def _row(place: int, comparison: Comparison, *, several: bool) -> Spec:
    estimate = comparison.estimate
    if estimate is None:  # `numbers_of` excludes these
        raise AssertionError(comparison)
    interval = estimate.interval
    return {
        "place": place,
        "label": title_of(comparison) if several else one_line(comparison.workload.label),
        "kind": comparison.state.value,
        "speedup": estimate.speedup,
        "low": interval.low if interval else estimate.speedup,
        "high": interval.high if interval else estimate.speedup,
        "text": speedup_text(comparison),
    }
