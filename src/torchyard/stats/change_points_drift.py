"""Many small changes in one direction are one drift.

A window shows a very slow drift as a step or two, because that is all it can tell; only the row of
them, over many windows, says what it was. Reads changes alone and no values, so that nothing of the
history has to be looked at again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from torchyard.stats.change_points_shape import Move

__all__ = ["one_drift"]

_FEWEST_IN_A_ROW: Final = 4
"""Steps in one direction, none larger than all others together, that are called a drift."""
_GAP: Final = 30
"""Points between two drifts that are still one: a ramp's ends are not sharp."""
_ON_THE_SLOPE: Final = 2.0
"""A step beside a drift belongs to it if it is not larger than so many times what the drift would
have done in that time."""


def one_drift(moves: Sequence[Move], *, end: int) -> list[Move]:
    """The changes, with rows that are one drift made one; `end` is the number of points."""
    joined: list[Move] = []
    for _, row in groupby(moves, key=lambda move: move.shift > 0.0):
        joined += _row(list(row), end)
    return _drifts_joined(joined, end)


def _row(row: list[Move], end: int) -> list[Move]:
    """Changes in one direction."""
    if len(row) < _FEWEST_IN_A_ROW:
        return row
    largest = max(range(len(row)), key=lambda place: abs(row[place].shift))
    total = sum(abs(move.shift) for move in row)
    if abs(row[largest].shift) * 2.0 > total:
        return [*_row(row[:largest], end), row[largest], *_row(row[largest + 1 :], end)]
    whole = row[0]
    for move in row[1:]:
        whole = _sum_of(whole, move)
    return [whole]


def _drifts_joined(moves: list[Move], end: int) -> list[Move]:
    """Drifts that follow each other, and steps beside a drift that are part of its slope."""
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
        return move.first - drift.last <= _GAP
    slope = abs(drift.shift) / max(drift.last - drift.first, 1)
    return abs(move.shift) <= _ON_THE_SLOPE * slope * (until - drift.last)


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
