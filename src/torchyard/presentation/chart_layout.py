"""Positions on charts: the speedup axis, and labels that do not overlap.

`templates/charts.html.j2` draws the small plots, which move with their rows when a table is sorted.
Labels are placed greedily in the given order, each at the first free position around its mark; a
label without one is omitted, since the table lists all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from torchyard.core.comparison import Comparison, Verdict

_MARGIN: Final = 0.06
_NARROWEST: Final = math.log(1.01)
_WIDEST: Final = math.log(1e4)
_TARGET_TICKS: Final = 5
_ROUND_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_WIDE_TICKS: Final = (
    *(1.0, 2.0, 0.5, 4.0, 0.25, 10.0, 0.1, 100.0, 0.01, 1000.0, 0.001),
    *(1.5, 0.7, 3.0, 0.35),
)
"""In the order of preference."""
_TICK_GAP: Final = 0.15


@dataclass(frozen=True, kw_only=True)
class SpeedupAxis:
    """A logarithmic axis: 2x and 0.5x are equally far from 1."""

    low: float
    high: float
    """Logarithms of the speedups at both ends."""

    def place(self, speedup: float) -> float:
        """Return the position of a speedup, from 0 (left) to 100 (right), clamped to the ends."""
        if not speedup > 0:
            return 0.0
        share = (math.log(speedup) - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 2)

    @property
    def numbers(self) -> list[float]:
        """A few round speedups on the axis, including 1 if it is in range."""
        low, high = math.exp(self.low), math.exp(self.high)
        if high / low > 2:  # noqa: PLR2004 - evenly spaced numbers crowd on a wide log axis
            return self._spaced(_WIDE_TICKS)
        step = round_step((high - low) / _TARGET_TICKS)
        first, last = math.ceil(low / step), math.floor(high / step)
        return [number * step for number in range(first, last + 1)]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Position and text of the ticks."""
        return [(self.place(number), f"{number:.4g}x") for number in self.numbers]

    def _spaced(self, candidates: Iterable[float]) -> list[float]:
        chosen: list[float] = []
        gap = _TICK_GAP * (self.high - self.low)
        for tick in candidates:
            inside = self.low <= math.log(tick) <= self.high
            if inside and all(abs(math.log(tick / other)) >= gap for other in chosen):
                chosen.append(tick)
        return sorted(chosen)


def numbers_of(comparison: Comparison) -> list[float]:
    """Return the speedup and the ends of its interval; empty if the speed does not count.

    Untrusted comparisons are included; charts draw them in a distinct style.
    """
    estimate = comparison.estimate
    if estimate is None or not estimate.launches or comparison.verdict is Verdict.WRONG:
        return []
    ends = [estimate.interval.low, estimate.interval.high] if estimate.interval else []
    return [estimate.speedup, *ends]


def axis_numbers(comparisons: Iterable[Comparison]) -> list[float]:
    """Return the numbers that an axis must show: those of trusted comparisons, if there are any."""
    plotted = [one for one in comparisons if numbers_of(one)]
    shown = [one for one in plotted if one.trusted] or plotted
    return [number for one in shown for number in numbers_of(one)]


def speedup_axis(numbers: Iterable[float], *, reach: float = 0.0) -> SpeedupAxis:
    """Return an axis that contains these speedups, and 1 if it is within `reach` widths of them."""
    logs = [math.log(number) for number in numbers if 0 < number < math.inf] or [0.0]
    extension = reach * (max(logs) - min(logs))
    if min(logs) - extension <= 0 <= max(logs) + extension:
        logs.append(0.0)
    low = min(max(min(logs), -_WIDEST), _WIDEST)
    high = max(min(max(logs), _WIDEST), -_WIDEST)
    width = max(high - low, _NARROWEST)
    padding = (width - (high - low)) / 2 + _MARGIN * width
    return SpeedupAxis(low=low - padding, high=high + padding)


def round_step(step: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next((factor * power for factor in _ROUND_STEPS if factor * power >= step), step)


LETTER: Final = 6.4
"""Width of an average letter in pixels at font size 11, in the widest common font."""
LINE: Final = 13.0
MARK: Final = 6.0
"""Half the width of a mark, with padding."""
_AROUND: Final = (
    *((1.0, 0.0), (1.0, -0.8), (1.0, 0.8), (-1.0, 0.0), (-1.0, -0.8), (-1.0, 0.8)),
    *((0.0, -1.1), (0.0, 1.1), (1.0, -1.7), (1.0, 1.7), (-1.0, -1.7), (-1.0, 1.7)),
    *((0.0, -2.0), (0.0, 2.0), (1.0, -2.6), (1.0, 2.6), (-1.0, -2.6), (-1.0, 2.6)),
)
"""Positions to try around a mark (x side, y offset in lines), in order of preference."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle in pixels, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two boxes overlap."""
        disjoint = (
            self.right <= other.left
            or other.right <= self.left
            or self.bottom <= other.top
            or other.bottom <= self.top
        )
        return not disjoint


@dataclass(frozen=True, kw_only=True)
class Label:
    """A label with the position of its left end, vertically centered."""

    text: str
    x: float
    y: float


def place_labels(
    marks: Sequence[tuple[float, float, str]],
    *,
    width: float,
    height: float,
    taken: Sequence[Box] = (),
) -> list[Label]:
    """Place the labels of marks (x, y, text) inside the chart; an empty text has no label."""
    boxes = [*taken]
    boxes += [
        Box(left=x - MARK, top=y - MARK, right=x + MARK, bottom=y + MARK) for x, y, _ in marks
    ]
    labels: list[Label] = []
    for x, y, text in marks:
        length = LETTER * len(text)
        for side, lift in _AROUND if text else ():
            left = x + side * (MARK + 2) - (0.0 if side > 0 else length if side < 0 else length / 2)
            middle = y + lift * LINE
            box = Box(
                left=left, top=middle - LINE / 2, right=left + length, bottom=middle + LINE / 2
            )
            inside = box.left >= 0 and box.right <= width and box.top >= 0 and box.bottom <= height
            if inside and not any(box.overlaps(other) for other in boxes):
                boxes.append(box)
                labels.append(Label(text=text, x=left, y=middle))
                break
    return labels
