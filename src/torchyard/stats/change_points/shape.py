"""Distinguish steps and drifts: whether a level changed between two values or over many.

A search for steps finds several steps in a slow drift. For neighboring changes in one direction two
models are fitted to the same values: the steps, and one ramp between two levels. The Bayesian
information criterion decides, with a penalty for the ramp. Works on logarithms.

A window shows a very slow drift as one or two steps; many small changes in one direction over
many windows are therefore merged into one drift, from the changes alone and without reading
values again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final, Literal

import numpy as np

from torchyard.stats.change_points.search import Cut, Stretch

_KNOTS: Final = 16
"""Number of grid positions at which a ramp may start or end."""
_LONGEST_ROW: Final = 8
"""Maximum number of changes fitted as one ramp; longer sequences are merged from drifts."""
_SHORTEST_RAMP: Final = 8
"""Minimum number of values of a ramp; a shorter one is a blurred step."""
_MIN_BIC_GAIN: Final = 6.0
"""Required advantage of the ramp: strong evidence on the scale of Kass & Raftery."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """A change from one level to another: a step or a drift."""

    kind: Literal["step", "drift"]
    first: int
    """First point of the new level or of the drift."""
    last: int
    """End of the drift; `first` for a step."""
    p_value: float
    shift: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class _Ramp:
    first: int
    last: int
    shift: float
    error: float
    squares: float


def shaped(stretch: Stretch, cuts: list[Cut]) -> list[Move]:
    """Classify changes as steps and drifts, in order."""
    return _shaped(stretch, cuts, [0, *(cut.place for cut in cuts), stretch.values.size])


def _shaped(stretch: Stretch, cuts: list[Cut], ends: list[int]) -> list[Move]:
    """Find the longest sequence of changes that is one ramp, and recurse before and after it."""
    for length in range(min(len(cuts), _LONGEST_ROW), 0, -1):
        for start in range(len(cuts) - length + 1):
            row = cuts[start : start + length]
            if not _one_direction(row):
                continue
            ramp = _better_ramp(stretch, row, ends[start], ends[start + length + 1])
            if ramp is not None:
                return [
                    *_shaped(stretch, cuts[:start], ends[: start + 2]),
                    _drift(row, ramp),
                    *_shaped(stretch, cuts[start + length :], ends[start + length :]),
                ]
    return [
        Move(
            kind="step",
            first=cut.place,
            last=cut.place,
            p_value=cut.p_value,
            shift=cut.shift,
            low=cut.low,
            high=cut.high,
        )
        for cut in cuts
    ]


def _one_direction(row: list[Cut]) -> bool:
    """Whether the changes go mostly in one direction, so that a ramp is plausible."""
    total = sum(cut.shift for cut in row)
    opposite = sum(cut.shift for cut in row if (cut.shift > 0.0) != (total > 0.0))
    return abs(total) >= 2.0 * abs(opposite)


def _drift(row: list[Cut], ramp: _Ramp) -> Move:
    return Move(
        kind="drift",
        first=ramp.first,
        last=ramp.last,
        p_value=min(cut.p_value for cut in row),
        shift=ramp.shift,
        low=ramp.shift - 1.96 * ramp.error,
        high=ramp.shift + 1.96 * ramp.error,
    )


def _better_ramp(stretch: Stretch, row: list[Cut], start: int, end: int) -> _Ramp | None:
    """Return the ramp between the neighbors of these changes if it fits better than steps."""
    ramp = _best_ramp(stretch, row, start, end)
    if ramp is None or ramp.last - ramp.first < _SHORTEST_RAMP:
        return None
    steps = 0.0
    places = [start, *(cut.place for cut in row), end]
    for one, other in pairwise(places):
        weights = stretch.weights[one:other]
        part = stretch.calm[one:other]
        deviations = part - np.average(part, weights=weights)
        steps += float(weights @ deviations**2)
    worth = stretch.independent_share * (end - start)
    if steps <= 0.0:
        return None
    gain = worth * math.log(steps / max(ramp.squares, 1e-12 * steps))
    # A step has a position and a level; a ramp has two positions and two levels, one of them shared.
    more_parameters = 4 - (2 * len(row) + 1)
    return ramp if gain - more_parameters * math.log(worth) > _MIN_BIC_GAIN else None


def _best_ramp(stretch: Stretch, row: list[Cut], start: int, end: int) -> _Ramp | None:
    part, weights = stretch.calm[start:end], stretch.weights[start:end]
    lowest = max(start, stretch.open_from) - start
    grid = np.linspace(lowest, end - start - 1, _KNOTS).round().astype(int)
    knots = np.unique(np.concatenate((grid, [cut.place - start for cut in row])))
    one, other = np.triu_indices(knots.size, k=1)
    if not one.size:
        return None
    first, last = knots[one], knots[other]
    # Each row is one ramp from 0 to 1; its two levels are fitted by least squares.
    rise = np.clip(
        (np.arange(end - start) - first[:, np.newaxis]) / (last - first)[:, np.newaxis], 0.0, 1.0
    )
    total = float(weights.sum())
    part = part - float(weights @ part) / total
    rise -= (rise @ weights / total)[:, np.newaxis]
    spread = rise**2 @ weights
    slope = rise @ (weights * part) / np.maximum(spread, 1e-300)
    squares = float(weights @ part**2) - slope**2 * spread
    best = int(np.argmin(squares))
    residual = max(float(squares[best]), 0.0)
    variance = residual / max(end - start - 4, 1)
    worth = max(float(spread[best]) * stretch.independent_share, 1e-300)
    return _Ramp(
        first=start + int(first[best]),
        last=start + int(last[best]),
        shift=float(slope[best]),
        error=math.sqrt(variance / worth),
        squares=residual,
    )


_MIN_DRIFT_STEPS: Final = 4
"""Minimum number of steps in one direction that count as a drift, if none dominates."""
_MAX_DRIFT_GAP: Final = 30
"""Maximum number of points between two drifts that are merged, since the ends of a ramp are blurred."""
_MAX_SLOPE_RATIO: Final = 2.0
"""A step next to a drift is part of it if it is at most this multiple of the change that the slope of
the drift implies for that time."""


def one_drift(moves: Sequence[Move], *, end: int) -> list[Move]:
    """Merge sequences of changes that form one drift; `end` is the number of points."""
    joined: list[Move] = []
    for _, row in groupby(moves, key=lambda move: move.shift > 0.0):
        joined += _row(list(row), end)
    return _drifts_joined(joined, end)


def _row(row: list[Move], end: int) -> list[Move]:
    """Merge changes in one direction into a drift if none dominates."""
    if len(row) < _MIN_DRIFT_STEPS:
        return row
    largest = max(range(len(row)), key=lambda place: abs(row[place].shift))
    total = sum(abs(move.shift) for move in row)
    if abs(row[largest].shift) * 2.0 > total:
        return [*_row(row[:largest], end), row[largest], *_row(row[largest + 1 :], end)]
    drift = row[0]
    for move in row[1:]:
        drift = _sum_of(drift, move)
    return [drift]


def _drifts_joined(moves: list[Move], end: int) -> list[Move]:
    """Merge successive drifts, and steps next to a drift that are part of its slope."""
    joined: list[Move] = []
    for place, move in enumerate(moves):
        until = moves[place + 1].first if place + 1 < len(moves) else end
        if joined and _belongs(joined[-1], move, until):
            joined[-1] = _sum_of(joined[-1], move)
        else:
            joined.append(move)
    return joined


def _belongs(drift: Move, move: Move, until: int) -> bool:
    if drift.kind != "drift" or (drift.shift > 0.0) != (move.shift > 0.0):
        return False
    if move.kind == "drift":
        return move.first - drift.last <= _MAX_DRIFT_GAP
    slope = abs(drift.shift) / max(drift.last - drift.first, 1)
    return abs(move.shift) <= _MAX_SLOPE_RATIO * slope * (until - drift.last)


def _sum_of(one: Move, other: Move) -> Move:
    shift = one.shift + other.shift
    below = math.hypot(one.shift - one.low, other.shift - other.low)
    above = math.hypot(one.high - one.shift, other.high - other.shift)
    return dataclasses.replace(
        one,
        kind="drift",
        last=other.last,
        p_value=min(one.p_value, other.p_value),
        shift=shift,
        low=shift - below,
        high=shift + above,
    )
