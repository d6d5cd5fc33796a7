"""Charts of one comparison's blocks: raw samples in time order, launches, and disturbances.

The Vega-Lite specs without data are in the page once; each comparison adds its numbers in as few
bytes as possible, because a page may hold hundreds of comparisons. Too many points are thinned out,
and the caption says so. Fields and expressions are constants: text from outside (reasons, units) is
data only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any, Final, TypeVar

from torchyard.core.block import Block
from torchyard.presentation.chart_layout import speedup_axis
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.vega_spec import (
    Spec,
    calculated,
    category,
    layer,
    mark,
    parameters,
    quantity,
    scale,
)

_SIDES: Final = scale(["baseline", "candidate"], ["var(--baseline)", "var(--candidate)"])
_SHAPES: Final = scale(["baseline", "candidate"], ["circle", "triangle-up"])
_VARIANT: Final = calculated("variant", "datum.side == 'b' ? 'baseline' : 'candidate'")
_OF_SIDE: Final[Spec] = {"field": "variant", "scale": _SIDES, "legend": None}
_SHAPE_OF_SIDE: Final[Spec] = {"field": "variant", "scale": _SHAPES, "legend": None}


def _tooltip(**titles: str) -> Any:
    """Return the tooltip with these fields, each with its title."""
    return [{"field": field, "title": title} for field, title in titles.items()]


_LAUNCH_BANDS: Final[Spec] = {
    "transform": [
        {
            "aggregate": [
                {"op": "min", "field": "order", "as": "first"},
                {"op": "max", "field": "order", "as": "last"},
            ],
            "groupby": ["launch"],
        },
        calculated("left", "datum.first - 0.5"),
        calculated("right", "datum.last + 0.5"),
    ],
    "layer": [
        layer(
            mark("rect", color="var(--band)", opacity=1),
            transform=[{"filter": "datum.launch % 2 == 1"}],
            x=quantity("left"),
            x2={"field": "right"},
        ),
        layer(
            mark("text", align="left", baseline="bottom", dx=2, color="var(--muted)", fontSize=10),
            x=quantity("left"),
            y={"value": -2},
            text=quantity("launch"),
        ),
    ],
}

_ORDER_AXIS: Final = quantity(
    "order",
    title="in chronological order; launches numbered above",
    scale={"nice": False, "padding": 4},
    axis={"grid": False, "labels": False, "ticks": False},
)

_SAMPLES: Final[Spec] = {
    "width": "container",
    "height": 190,
    "params": parameters(reasons=[""], unit=""),
    "transform": [
        {"flatten": ["time"]},
        {"window": [{"op": "row_number", "as": "order"}]},
        _VARIANT,
        calculated("reason", "reasons[datum.dirty]"),
        calculated("block", "datum.dirty > 0 ? 'disturbed: ' + datum.reason : 'clean'"),
        calculated("said", "format(datum.time, '.4~g') + ' ' + unit"),
    ],
    "layer": [
        _LAUNCH_BANDS,
        layer(
            mark("point", size=24, filled=False),
            x=_ORDER_AXIS,
            y=quantity(
                "time",
                scale={"zero": False, "padding": 6},
                title=None,
                axis={"labelExpr": "datum.label + ' ' + unit", "tickCount": 5},
            ),
            stroke=_OF_SIDE,
            fill=_OF_SIDE,
            shape=_SHAPE_OF_SIDE,
            fillOpacity={"condition": {"test": "datum.dirty > 0", "value": 0}, "value": 0.75},
            strokeWidth={"condition": {"test": "datum.dirty > 0", "value": 1.1}, "value": 0},
            tooltip=_tooltip(variant="variant", said="time", launch="launch", block="block"),
        ),
    ],
}

_LAUNCHES: Final[Spec] = {
    "width": "container",
    "height": 170,
    "params": parameters(low=1, high=1, speedup=1, bottom=0.9, top=1.1, ticks=[1]),
    "transform": [{"flatten": ["ratio"]}],
    "layer": [
        layer(
            mark("rect", color="var(--accent)", opacity={"expr": "high > low ? 0.16 : 0"}),
            values=[{}],
            transform=[calculated("low", "low"), calculated("high", "high")],
            y=quantity("low"),
            y2={"field": "high"},
        ),
        layer(
            mark("rule", color="var(--muted)", strokeDash=[3, 3], clip=True),
            values=[{"one": 1}],
            y=quantity("one"),
        ),
        layer(
            mark(
                "rule",
                color="var(--accent)",
                strokeWidth=1.5,
                opacity={"expr": "speedup > bottom ? 1 : 0"},
            ),
            values=[{}],
            transform=[calculated("speedup", "speedup")],
            y=quantity("speedup"),
        ),
        layer(
            mark("tick", thickness=1.3, size=13, color="var(--muted)"),
            x={
                "field": "launch",
                "type": "ordinal",
                "title": "launch",
                "axis": {"labelAngle": 0, "labelOverlap": True, "ticks": False},
            },
            y=quantity(
                "ratio",
                title=None,
                scale={
                    "type": "log",
                    "nice": False,
                    "domainMin": {"expr": "bottom"},
                    "domainMax": {"expr": "top"},
                },
                axis={
                    "values": {"expr": "ticks"},
                    "labelExpr": "format(datum.value, '.4~g') + 'x'",
                },
            ),
            opacity={"value": 0.75},
        ),
        layer(
            mark(
                "point",
                size=70,
                opacity=1,
                color="var(--candidate)",
                stroke="var(--card)",
                strokeWidth=1.2,
            ),
            transform=[
                {
                    "aggregate": [
                        {"op": "max", "field": "middle", "as": "middle"},
                        {"op": "count", "as": "pairs"},
                    ],
                    "groupby": ["launch"],
                },
                calculated("said", "format(datum.middle, '.3f') + 'x'"),
            ],
            x={"field": "launch", "type": "ordinal"},
            y=quantity("middle"),
            tooltip=_tooltip(launch="launch", said="speedup"),
        ),
    ],
}

_DISTURBANCES: Final[Spec] = {
    "width": "container",
    "height": 20,
    "params": parameters(reasons=[""]),
    "transform": [{"flatten": ["why"]}, calculated("reason", "reasons[datum.why]"), _VARIANT],
    "layer": [
        _LAUNCH_BANDS,
        layer(
            mark("point", size=34, opacity=0.9),
            transform=[{"filter": "datum.why > 0"}],
            x=_ORDER_AXIS,
            y=category(
                "reason",
                title=None,
                axis={
                    "grid": True,
                    "labelLimit": 150,
                    "labelColor": "var(--text)",
                    "ticks": False,
                    "domain": False,
                },
            ),
            color=_OF_SIDE,
            shape=_SHAPE_OF_SIDE,
            tooltip=_tooltip(reason="reason", variant="variant", launch="launch"),
        ),
    ],
}

BASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "samples": _SAMPLES,
    "launches": _LAUNCHES,
    "disturbances": _DISTURBANCES,
}


T = TypeVar("T")

SAMPLES_DRAWN: Final = 360
BLOCKS_DRAWN: Final = 180
PAIRS_DRAWN: Final = 240
_EDGE: Final = 1.5
_EDGE_SHARE: Final = 0.97
"""The time axis ends at this multiple of the slower median, or where it covers this share of the samples
if that is more: a few slow samples would flatten all others."""
_REASON_HEIGHT: Final = 22
_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


@dataclass(frozen=True, kw_only=True)
class ChartData:
    """Data, title and description that one comparison adds to a base chart."""

    base: str
    own: Mapping[str, Any]
    title: str
    description: str


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, Any]:
    """Return rows without column names, which `charts.js` restores."""
    return {"names": list(names), "rows": [list(row) for row in rows]}


def in_order(blocks: Iterable[Block], baseline: str, candidate: str) -> list[Block]:
    """Return the blocks of both variants in chronological order."""
    own = [block for block in blocks if block.variant in {baseline, candidate}]
    return sorted(own, key=lambda block: (block.launch, block.round, block.position))


def sample_chart(blocks: Sequence[Block], baseline: str) -> ChartData:
    """Return the samples of both variants, thinned out if there are too many."""
    shown = _thinned_rounds(blocks)
    each = max(2, SAMPLES_DRAWN // max(1, len(shown)))
    taken = [_thinned_samples(block.samples_ns, each) for block in shown]
    total = sum(len(block.samples_ns) for block in blocks)
    drawn = sum(len(samples) for samples in taken)
    middles = [
        median(times)
        for side in (True, False)
        if (times := [b.median_ns for b in shown if (b.variant == baseline) is side])
    ]
    edge = _edge_of(blocks, max(middles, default=1.0))
    unit_ns, unit = next((s, u) for s, u in _UNITS if max(middles, default=1.0) >= s or s == 1.0)
    reasons = _Reasons()
    rows: list[list[object]] = []
    beyond = 0
    for block, samples in zip(shown, taken, strict=True):
        beyond += sum(sample > edge for sample in samples)
        times = [_short(min(sample, edge) / unit_ns) for sample in samples]
        side = "b" if block.variant == baseline else "c"
        rows.append([block.launch + 1, side, reasons.of(block.dirty), times])
    title = "Samples in chronological order"
    if drawn < total:
        title += f": {drawn:,} of {total:,} drawn, evenly spaced plus the slowest of each block"
        if len(shown) < len(blocks):
            title += f", in {len(shown):,} of {len(blocks):,} blocks"
    if beyond:
        title += (
            f"; {beyond} slower than {_short(edge / unit_ns):g} {unit} are drawn at the top edge"
        )
    return ChartData(
        base="samples",
        own={
            "data": _table(("launch", "side", "dirty", "time"), rows),
            "params": parameters(reasons=reasons.texts, unit=unit),
        },
        title=f"{title}. Hollow marks are from disturbed blocks.",
        description="Time of each sample of both variants, in chronological order",
    )


def launch_chart(
    launches: Sequence[Sequence[float]],
    *,
    low: float | None,
    high: float | None,
    speedup: float | None,
) -> ChartData:
    """Return the pairs of each launch and their median, from log speedups."""
    total = sum(map(len, launches))
    each = max(1, PAIRS_DRAWN // max(1, len(launches)))
    rows: list[list[object]] = []
    drawn = 0
    ends = speedup_axis(
        [
            *(math.exp(value) for launch in launches for value in launch),
            *(end for end in (low, high, speedup) if end),
        ],
        reach=1.0,
    )
    # Unknown values are placed at the bottom, where they are not visible.
    bottom = round(math.exp(ends.low), 6)
    for number, launch in enumerate(launches, start=1):
        if launch:
            taken = _evenly_spaced(launch, each)
            drawn += len(taken)
            ratios = [_short(math.exp(value)) for value in taken]
            rows.append([number, _short(math.exp(median(launch))), ratios])
    title = (
        "Speedup of each launch (dot) and of its pairs (ticks), and the confidence interval (band)"
    )
    if drawn < total:
        title += f": {drawn:,} of {total:,} pairs drawn"
    return ChartData(
        base="launches",
        own={
            "data": _table(("launch", "middle", "ratio"), rows),
            "params": parameters(
                low=_short(low) if low else bottom,
                high=_short(high) if high else bottom,
                speedup=_short(speedup) if speedup else bottom,
                bottom=bottom,
                top=round(math.exp(ends.high), 6),
                ticks=[_short(number) for number in ends.numbers],
            ),
        },
        title=title,
        description="Speedup of each launch and of its pairs; the numbers are listed below",
    )


def disturbance_chart(blocks: Sequence[Block], baseline: str) -> ChartData:
    """Return the disturbed blocks by reason, in chronological order."""
    reasons = _Reasons()
    rows: list[list[object]] = []
    dirty = [place for place, block in enumerate(blocks) if block.dirty]
    drawn = set(_evenly_spaced(dirty, BLOCKS_DRAWN))
    # The first and the last block of each launch set its width.
    ends: set[int] = set()
    for _, group in groupby(range(len(blocks)), key=lambda place: blocks[place].launch):
        places = list(group)
        ends |= {places[0], places[-1]}
    for place in sorted(drawn | ends):
        block = blocks[place]
        side = "b" if block.variant == baseline else "c"
        why = [reasons.of((reason,)) for reason in block.dirty] or [0]
        rows.append([place + 1, block.launch + 1, side, why])
    title = "Disturbed blocks in chronological order"
    if len(drawn) < len(dirty):
        title += f": {len(drawn):,} of {len(dirty):,} drawn"
    return ChartData(
        base="disturbances",
        own={
            "height": _REASON_HEIGHT * max(1, len(reasons.texts) - 1),
            "data": _table(("order", "launch", "side", "why"), rows),
            "params": parameters(reasons=reasons.texts),
        },
        title=title,
        description="Blocks that the guards found disturbed, by reason, in chronological order",
    )


class _Reasons:
    """Index of repeated texts; 0 means none."""

    def __init__(self) -> None:
        self.texts = [""]

    def of(self, reasons: tuple[str, ...]) -> int:
        text = ", ".join(map(one_line, reasons))
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)


def _edge_of(blocks: Sequence[Block], slower_ns: float) -> float:
    samples = sorted(sample for block in blocks for sample in block.samples_ns)
    high_quantile = samples[int(_EDGE_SHARE * (len(samples) - 1))]
    return max(_EDGE * slower_ns, 1.1 * high_quantile)


def _thinned_rounds(blocks: Sequence[Block]) -> list[Block]:
    """Return all blocks, or those of evenly spaced rounds if there are too many."""
    rounds = list(dict.fromkeys((block.launch, block.round) for block in blocks))
    if len(blocks) <= BLOCKS_DRAWN:
        return list(blocks)
    kept_rounds = set(_evenly_spaced(rounds, BLOCKS_DRAWN * len(rounds) // len(blocks)))
    return [block for block in blocks if (block.launch, block.round) in kept_rounds]


def _thinned_samples(samples: Sequence[float], count: int) -> list[float]:
    """Return `count` evenly spaced samples in order, including the slowest."""
    if len(samples) <= count:
        return list(samples)
    slowest = max(range(len(samples)), key=samples.__getitem__)
    indices = set(_evenly_spaced(range(len(samples)), count - 1)) | {slowest}
    return [samples[place] for place in sorted(indices)]


def _evenly_spaced(items: Sequence[T], count: int) -> list[T]:
    """Return at most `count` evenly spaced items."""
    if len(items) <= count:
        return list(items)
    return [items[place * len(items) // count] for place in range(max(1, count))]


def _short(number: float) -> float:
    """Round to four significant digits; return 0 if not finite."""
    if not math.isfinite(number):
        return 0
    short = float(f"{number:.4g}")
    return int(short) if short.is_integer() else short
