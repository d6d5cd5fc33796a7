"""Charts of one comparison's blocks: raw samples in time order, launches, and disturbances.

The shapes (`block_shapes.py`) are in the page once; each comparison adds its numbers, as few bytes
as can be, because a page may hold hundreds of them. What is too much to draw is thinned out, and
the caption says so. Knows nothing of the page around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any, Final, TypeVar

from torchyard.core.block import Block
from torchyard.reports.charts import speedup_axis
from torchyard.reports.plain_text import one_line

__all__ = [
    "BLOCKS_DRAWN",
    "PAIRS_DRAWN",
    "SAMPLES_DRAWN",
    "ChartData",
    "disturbance_chart",
    "in_order",
    "launch_chart",
    "sample_chart",
]

T = TypeVar("T")

SAMPLES_DRAWN: Final = 360
BLOCKS_DRAWN: Final = 180
PAIRS_DRAWN: Final = 240
_EDGE: Final = 1.5
_EDGE_SHARE: Final = 0.97
"""The chart reaches to this many times the slower side's median, and at least as far as this share of
the samples: a few slow ones would flatten all the others."""
_REASON_HEIGHT: Final = 22
_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


@dataclass(frozen=True, kw_only=True)
class ChartData:
    """What one comparison adds to a shape, and what a reader is told of it."""

    base: str
    own: Mapping[str, Any]
    title: str
    description: str


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, Any]:
    """Rows without their names, which `charts.js` puts back."""
    return {"names": list(names), "rows": [list(row) for row in rows]}


def in_order(blocks: Iterable[Block], baseline: str, candidate: str) -> list[Block]:
    """The blocks of both sides as they were taken."""
    own = [block for block in blocks if block.variant in {baseline, candidate}]
    return sorted(own, key=lambda block: (block.launch, block.round, block.position))


def sample_chart(blocks: Sequence[Block], baseline: str) -> ChartData:
    """Every sample of both sides, or as many as can be told apart."""
    shown = _thinned_rounds(blocks)
    each = max(2, SAMPLES_DRAWN // max(1, len(shown)))
    taken = [_spread(block.samples_ns, each) for block in shown]
    total = sum(len(block.samples_ns) for block in blocks)
    drawn = sum(len(samples) for samples in taken)
    middles = [
        median(times)
        for side in (True, False)
        if (times := [b.median_ns for b in shown if (b.variant == baseline) is side])
    ]
    edge = _edge_of(blocks, max(middles, default=1.0))
    scale, unit = next((s, u) for s, u in _UNITS if max(middles, default=1.0) >= s or s == 1.0)
    reasons = _Reasons()
    rows: list[list[object]] = []
    beyond = 0
    for block, samples in zip(shown, taken, strict=True):
        beyond += sum(sample > edge for sample in samples)
        times = [_short(min(sample, edge) / scale) for sample in samples]
        side = "b" if block.variant == baseline else "c"
        rows.append([block.launch + 1, side, reasons.of(block.dirty), times])
    title = "Samples in time order"
    if drawn < total:
        title += f": {drawn:,} of {total:,} drawn, in each block evenly spaced and its slowest"
        if len(shown) < len(blocks):
            title += f", in {len(shown):,} of {len(blocks):,} blocks"
    if beyond:
        title += f"; {beyond} slower than {_short(edge / scale):g} {unit} are at the top edge"
    return ChartData(
        base="samples",
        own={
            "data": _table(("launch", "side", "dirty", "time"), rows),
            "params": [
                {"name": "reasons", "value": reasons.texts},
                {"name": "unit", "value": unit},
            ],
        },
        title=f"{title}. Hollow ones are from disturbed blocks.",
        description="Time of each sample, both sides, in the order they were taken",
    )


def launch_chart(
    launches: Sequence[Sequence[float]],
    *,
    low: float | None,
    high: float | None,
    speedup: float | None,
) -> ChartData:
    """The pairs of each launch and their median, from log speedups."""
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
    # What is not known lies at the bottom, unseen.
    bottom = round(math.exp(ends.low), 6)
    for number, launch in enumerate(launches, start=1):
        if launch:
            taken = _every(launch, each)
            drawn += len(taken)
            ratios = [_short(math.exp(value)) for value in taken]
            rows.append([number, _short(math.exp(median(launch))), ratios])
    title = "Speedup of each launch (dot), of its pairs (ticks), and the interval (band)"
    if drawn < total:
        title += f": {drawn:,} of {total:,} pairs drawn"
    return ChartData(
        base="launches",
        own={
            "data": _table(("launch", "middle", "ratio"), rows),
            "params": [
                {"name": "low", "value": _short(low) if low else bottom},
                {"name": "high", "value": _short(high) if high else bottom},
                {"name": "speedup", "value": _short(speedup) if speedup else bottom},
                {"name": "bottom", "value": bottom},
                {"name": "top", "value": round(math.exp(ends.high), 6)},
                {"name": "ticks", "value": [_short(number) for number in ends.numbers]},
            ],
        },
        title=title,
        description="Speedup of each launch and of its pairs; the numbers are listed below",
    )


def disturbance_chart(blocks: Sequence[Block], baseline: str) -> ChartData:
    """When the guards saw what, block by block."""
    reasons = _Reasons()
    rows: list[list[object]] = []
    dirty = [place for place, block in enumerate(blocks) if block.dirty]
    kept = set(_every(dirty, BLOCKS_DRAWN))
    # The first and the last block of each launch say how wide it is.
    ends = {
        place
        for _, group in groupby(range(len(blocks)), key=lambda place: blocks[place].launch)
        for place in _ends(list(group))
    }
    for place in sorted(kept | ends):
        block = blocks[place]
        side = "b" if block.variant == baseline else "c"
        why = [reasons.of((reason,)) for reason in block.dirty] or [0]
        rows.append([place + 1, block.launch + 1, side, why])
    title = "Disturbed blocks in time order"
    if len(kept) < len(dirty):
        title += f": {len(kept):,} of {len(dirty):,} drawn"
    return ChartData(
        base="disturbances",
        own={
            "height": _REASON_HEIGHT * max(1, len(reasons.texts) - 1),
            "data": _table(("order", "launch", "side", "why"), rows),
            "params": [{"name": "reasons", "value": reasons.texts}],
        },
        title=title,
        description="Which blocks the guards saw disturbed, by reason, in the order they were taken",
    )


class _Reasons:
    """Numbers for texts that come again and again; 0 is none."""

    def __init__(self) -> None:
        self.texts = [""]

    def of(self, reasons: tuple[str, ...]) -> int:
        text = ", ".join(map(one_line, reasons))
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)


def _edge_of(blocks: Sequence[Block], slower_ns: float) -> float:
    everything = sorted(sample for block in blocks for sample in block.samples_ns)
    most = everything[int(_EDGE_SHARE * (len(everything) - 1))]
    return max(_EDGE * slower_ns, 1.1 * most)


def _thinned_rounds(blocks: Sequence[Block]) -> list[Block]:
    """All blocks, or both sides of evenly spaced rounds."""
    rounds = list(dict.fromkeys((block.launch, block.round) for block in blocks))
    if len(blocks) <= BLOCKS_DRAWN:
        return list(blocks)
    wanted = set(_every(rounds, BLOCKS_DRAWN * len(rounds) // len(blocks)))
    return [block for block in blocks if (block.launch, block.round) in wanted]


def _spread(samples: Sequence[float], count: int) -> list[float]:
    """That many, evenly spaced, in order, the slowest among them."""
    if len(samples) <= count:
        return list(samples)
    slowest = max(range(len(samples)), key=samples.__getitem__)
    places = set(_every(range(len(samples)), count - 1)) | {slowest}
    return [samples[place] for place in sorted(places)]


def _every(items: Sequence[T], count: int) -> list[T]:
    """At most that many, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[place * len(items) // count] for place in range(max(1, count))]


def _ends(places: Sequence[int]) -> tuple[int, int]:
    return places[0], places[-1]


def _short(number: float) -> float:
    """Four digits that count; 0 for what is no number."""
    if not math.isfinite(number):
        return 0
    short = float(f"{number:.4g}")
    return int(short) if short.is_integer() else short
