"""Detect changes in the history of one value: where, how large, how significant, step or drift.

Points are appended in order of time. A window of recent points is open; everything before it is
settled and is not examined again. Settling depends on the points alone and not on when they
arrived, so adding points one by one gives exactly the same result as all of them at once, at a
cost that does not grow with the history.

The noise of a series (its size, the correlation of neighbours, the precision of each value) is
estimated from differences between neighbours, which a few steps or a slow drift hardly affect.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from torchyard.stats.change_points.ranks import Values
from torchyard.stats.change_points.search import Stretch, find_cuts, standing
from torchyard.stats.change_points.shape import Move, one_drift, shaped

_TOO_LARGE: Final = 4.0
"""Differences above so many times the middle one are steps or outliers, and left out: of normal
noise less than 1 in 100."""
# Mean of |x - y| for two independent normal values, in their standard deviations, cut as above.
_MEAN_TO_SD: Final = 1.0 / 1.1016
_FEWEST: Final = 20
"""Below this the likeness of neighbours is a guess."""
_DOUBT: Final = 0.6
"""Likeness that is forgiven, times the root of the number of values; its standard error is about 1
on that scale. More forgiveness lets correlated noise raise alarms, less costs power everywhere."""
_MOST_ALIKE: Final = 0.9
_SHARPEST: Final = 4.0
"""How much more than the middle value a value can count at most."""
_LEFT_OF_IT: Final = 0.8
"""Weighted values are worth at least this share of as many equal ones."""
_OUTLIER_SD: Final = 3.0
_NEIGHBOURS: Final = 3
"""On each side; the median of seven values holds with three outliers among them."""


def noise_sd(values: Values) -> float:
    """Standard deviation of a value around its level; 0 when there are too few."""
    if values.size <= 1:
        return 0.0
    differences = np.abs(np.diff(values))
    kept = differences[differences <= _TOO_LARGE * np.median(differences)]
    return float(np.mean(kept)) * _MEAN_TO_SD


def independent_share(values: Values, places: Sequence[int]) -> float:
    """How many of the values are worth an independent one: 1 when neighbours are not alike.

    If noise follows a first-order autoregression with likeness r, the mean of n values is worth
    n (1 - r) / (1 + r) of them. r is taken around the levels between the changes that would stand
    if all values were independent. A likeness that chance may have made is not held against them.
    """
    if values.size < _FEWEST:
        return 1.0
    products = squares = 0.0
    for start, end in pairwise((0, *places, values.size)):
        level = calmed(values[start:end])
        apart = level - float(np.mean(level))
        products += float(apart[1:] @ apart[:-1])
        squares += float(apart @ apart)
    likeness = products / squares if squares > 0.0 else 0.0
    # Around its own mean noise seems less alike than it is (Marriott & Pope 1954).
    likeness += (1.0 + 3.0 * likeness) * (len(places) + 1) / values.size
    likeness = min(max(likeness - _DOUBT / math.sqrt(values.size), 0.0), _MOST_ALIKE)
    return (1.0 - likeness) / (1.0 + likeness)


def weights_of(values: Values, errors: Values) -> Values:
    """How much each value counts, around 1, from its standard error where one is known.

    Runs differ by more than their own errors say, so the rest of the noise is added to all alike;
    a value without an error counts as the middle one. Errors from two or three launches are guesses
    that can be off tenfold, so weights that would leave little of the series are evened out.
    """
    known = errors[np.isfinite(errors)]
    if not known.size or float(np.max(known)) <= 0.0:
        return np.ones(values.size)
    noise = noise_sd(values)
    # Errors that are larger than what the values show are overstated.
    scale = min(1.0, noise / max(float(np.median(known)), 1e-300)) if noise > 0.0 else 1.0
    middle = scale * float(np.median(known))
    rest = max(noise**2 - middle**2, 0.25 * middle**2)
    usual = max(rest + middle**2, 1e-300)
    variances = rest + (np.where(np.isfinite(errors), errors * scale, middle)) ** 2
    weights: Values = np.minimum(usual / np.maximum(variances, usual / _SHARPEST), _SHARPEST)
    while float(weights.sum()) ** 2 < _LEFT_OF_IT * values.size * float(weights @ weights):
        weights = np.sqrt(weights)
    return weights


def calmed(values: Values) -> Values:
    """The values with outliers drawn in to three standard deviations around their neighbours."""
    width = 2 * _NEIGHBOURS + 1
    if values.size < width:
        return values
    padded = np.pad(values, _NEIGHBOURS, mode="edge")
    middle = np.median(sliding_window_view(padded, width), axis=1)
    reach = _OUTLIER_SD * noise_sd(values)
    drawn: Values = np.clip(values, middle - reach, middle + reach)
    return drawn


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
