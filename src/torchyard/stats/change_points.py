"""Changes over the history of one value: where, how large, how sure, at once or slowly.

Points are added in order of time and never looked at again once they are far enough back: a window
of them is open, everything before it is settled. Settling depends on the points alone and not on
when they came, so that adding points one by one gives exactly what all of them at once give, at a
cost that does not grow with the history. The method is in `change_points_search` (steps) and
`change_points_shape` (drifts). Knows nothing of runs, revisions or files.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from torchyard.stats.change_points_drift import one_drift
from torchyard.stats.change_points_noise import calmed, independent_share, noise_sd, weights_of
from torchyard.stats.change_points_ranks import Values
from torchyard.stats.change_points_search import Stretch, find_cuts, standing
from torchyard.stats.change_points_shape import Move, shaped

__all__ = ["Rules", "Settled", "find_moves", "settle"]

Numbers = Sequence[float] | Values
Errors = Sequence[float | None] | Values

_NOTHING: Final = math.nan
_AROUND: Final = 15
"""Points on each side of a drift's ends that its size is taken from."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What counts as a change."""

    alpha: float = 0.01
    """Chance that a quiet series of up to 200 points shows any change; for longer ones, for every
    further 100 points."""
    least: float = 0.005
    """Smallest change that counts, as a fraction: nobody acts on less."""
    fewest: int = 4
    """Points on each side of a change: three bad runs in a row are not a new level yet."""
    nearest: int = 50
    """Points on each side that a change's size is taken from, at most."""
    settled_after: int = 100
    """A point is settled once there are between so many and twice as many after it."""
    context: int = 50
    """Settled points before the window that are looked at together with it, at most."""


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What is known of the points before `upto` and will not change any more."""

    upto: int = 0
    moves: tuple[Move, ...] = ()
    rests_on: int = 0
    """How many points were looked at to know it; later ones do not matter."""


def find_moves(
    values: Numbers,
    errors: Errors = (),
    *,
    settled: Settled | None = None,
    rules: Rules | None = None,
) -> list[Move]:
    """All changes of the series, from what is settled and the open points.

    `values` are positive, in order of time, without gaps; `errors` are standard errors of their
    logarithms where they are known. Only the open points and their context are read.
    """
    rules = rules or Rules()
    settled = settle(values, errors, settled=settled, rules=rules)
    moves = [*settled.moves, *_look(values, errors, settled, len(values), rules)]
    return [
        move if move in moves else _measured(values, move)
        for move in one_drift(moves, end=len(values))
    ]


def settle(
    values: Numbers,
    errors: Errors = (),
    *,
    settled: Settled | None = None,
    rules: Rules | None = None,
) -> Settled:
    """The same, moved on as far as the points allow: what to keep for the next point."""
    rules = rules or Rules()
    settled = settled or Settled()
    while len(values) - settled.upto >= 2 * rules.settled_after:
        upto = settled.upto + rules.settled_after
        rests_on = upto + rules.settled_after
        found = _look(values, errors, settled, rests_on, rules)
        settled = Settled(
            upto=upto, moves=(*settled.moves, *_before(found, upto)), rests_on=rests_on
        )
    return settled


def _look(
    values: Numbers,
    errors: Errors,
    settled: Settled,
    end: int,
    rules: Rules,
) -> list[Move]:
    """Changes between what is settled and `end`."""
    level_since = settled.moves[-1].last if settled.moves else 0
    start = max(level_since, settled.upto - rules.context)
    logs = np.log(np.asarray(values[start:end], dtype=np.float64))
    stretch = Stretch(
        values=logs,
        calm=calmed(logs),
        weights=weights_of(logs, _array(errors[start:end], logs.size)),
        independent_share=1.0,
        alpha=rules.alpha,
        least=math.log1p(rules.least),
        fewest=rules.fewest,
        nearest=rules.nearest,
        open_from=settled.upto - start,
    )
    cuts = find_cuts(stretch)
    share = independent_share(logs, [cut.place for cut in cuts]) if cuts else 1.0
    if share < 1.0:
        stretch = dataclasses.replace(stretch, independent_share=share)
        cuts = standing(stretch, [cut.place for cut in cuts])
    return [
        dataclasses.replace(move, first=move.first + start, last=move.last + start)
        for move in shaped(stretch, cuts)
    ]


def _array(errors: Errors, size: int) -> Values:
    if len(errors) == 0:
        return np.full(size, _NOTHING)
    return np.asarray([_NOTHING if error is None else error for error in errors], dtype=np.float64)


def _before(moves: list[Move], upto: int) -> list[Move]:
    """What began before the place; a drift that goes on is cut there and joined again later."""
    kept = []
    for move in moves:
        if move.first >= upto:
            break
        done = (min(move.last, upto) - move.first) / max(move.last - move.first, 1)
        part = 1.0 if move.kind == "step" else done
        kept.append(
            dataclasses.replace(
                move,
                last=min(move.last, upto),
                shift=part * move.shift,
                low=part * move.low,
                high=part * move.high,
            )
        )
    return kept


def _measured(values: Numbers, drift: Move) -> Move:
    """A drift that was put together, with its size from the points around both of its ends."""
    around = [
        np.log(np.asarray(values[max(end - _AROUND, 0) : end + _AROUND], dtype=np.float64))
        for end in (drift.first, drift.last)
    ]
    shift = float(np.median(around[1]) - np.median(around[0]))
    # A median of n normal values has the standard error of a mean, times sqrt(pi / 2).
    error = math.sqrt(math.pi / 2.0 * sum(noise_sd(one) ** 2 / max(one.size, 1) for one in around))
    return dataclasses.replace(
        drift, shift=shift, low=shift - 1.96 * error, high=shift + 1.96 * error
    )
