"""Detect changes in the history of one value: where, how large, how significant, step or drift.

Points are appended in order of time. A window of recent points is open; everything before it is
settled and is not examined again. Settling depends on the points alone and not on when they
arrived, so adding points one by one gives exactly the same result as all of them at once, at a
cost that does not grow with the history.

The noise of a series (its size, the correlation of neighbors, the precision of each value) is
estimated from differences between neighbors, which a few steps or a slow drift barely affect.
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

from torchyard.stats.change_points.search import Stretch, Values, find_cuts, significant_cuts
from torchyard.stats.change_points.shape import Move, one_drift, shaped

_MAX_DIFFERENCE_RATIO: Final = 4.0
"""Differences above this multiple of the median are steps or outliers, and excluded; less than 1 % of
normal noise."""
# Mean of |x - y| of two independent normal values in standard deviations, truncated as above.
_MEAN_TO_SD: Final = 1.0 / 1.1016
_MIN_VALUES: Final = 20
"""Minimum number of values to estimate the autocorrelation."""
_TOLERATED_CORRELATION: Final = 0.6
"""Autocorrelation that is ignored, times the root of the number of values; its standard error is about
1 on that scale. A larger tolerance lets correlated noise raise alarms, a smaller one costs power."""
_MAX_CORRELATION: Final = 0.9
_MAX_WEIGHT: Final = 4.0
"""Largest weight of a value, relative to the median one."""
_MIN_EFFECTIVE_SHARE: Final = 0.8
"""Smallest effective sample size of the weighted values, relative to equal weights."""
_OUTLIER_SD: Final = 3.0
_NEIGHBORS: Final = 3
"""Neighbors on each side; the median of seven values tolerates three outliers."""


def noise_sd(values: Values) -> float:
    """Return the standard deviation of a value around its level; 0 if there are too few."""
    if values.size <= 1:
        return 0.0
    differences = np.abs(np.diff(values))
    usual_differences = differences[differences <= _MAX_DIFFERENCE_RATIO * np.median(differences)]
    return float(np.mean(usual_differences)) * _MEAN_TO_SD


def independent_share(values: Values, places: Sequence[int]) -> float:
    """Return the effective sample size divided by the number of values: 1 without autocorrelation.

    If noise follows a first-order autoregression with correlation r, the mean of n values is worth
    n (1 - r) / (1 + r) independent ones. r is estimated around the levels between the changes that
    would be significant for independent values. A correlation within chance is ignored.
    """
    if values.size < _MIN_VALUES:
        return 1.0
    products = squares = 0.0
    for start, end in pairwise((0, *places, values.size)):
        level = calmed(values[start:end])
        deviations = level - float(np.mean(level))
        products += float(deviations[1:] @ deviations[:-1])
        squares += float(deviations @ deviations)
    correlation = products / squares if squares > 0.0 else 0.0
    # The estimate around the sample mean is biased towards 0 (Marriott & Pope 1954).
    correlation += (1.0 + 3.0 * correlation) * (len(places) + 1) / values.size
    correlation = min(
        max(correlation - _TOLERATED_CORRELATION / math.sqrt(values.size), 0.0), _MAX_CORRELATION
    )
    return (1.0 - correlation) / (1.0 + correlation)


def weights_of(values: Values, errors: Values) -> Values:
    """Return the weight of each value, around 1, from its standard error where known.

    Runs vary by more than their standard errors, so the remaining noise is added to all equally; a
    value without an error gets the median error. Errors from two or three launches can be off
    tenfold, so weights that would reduce the effective sample size too much are evened out.
    """
    known_errors = errors[np.isfinite(errors)]
    if not known_errors.size or float(np.max(known_errors)) <= 0.0:
        return np.ones(values.size)
    noise = noise_sd(values)
    # Errors larger than the observed noise are overstated.
    scale = min(1.0, noise / max(float(np.median(known_errors)), 1e-300)) if noise > 0.0 else 1.0
    median_error = scale * float(np.median(known_errors))
    other_variance = max(noise**2 - median_error**2, 0.25 * median_error**2)
    typical_variance = max(other_variance + median_error**2, 1e-300)
    variances = other_variance + (np.where(np.isfinite(errors), errors * scale, median_error)) ** 2
    weights: Values = np.minimum(
        typical_variance / np.maximum(variances, typical_variance / _MAX_WEIGHT), _MAX_WEIGHT
    )
    while float(weights.sum()) ** 2 < _MIN_EFFECTIVE_SHARE * values.size * float(weights @ weights):
        weights = np.sqrt(weights)
    return weights


def calmed(values: Values) -> Values:
    """Clip outliers to three standard deviations around the median of their neighbors."""
    width = 2 * _NEIGHBORS + 1
    if values.size < width:
        return values
    padded = np.pad(values, _NEIGHBORS, mode="edge")
    middle = np.median(sliding_window_view(padded, width), axis=1)
    reach = _OUTLIER_SD * noise_sd(values)
    drawn: Values = np.clip(values, middle - reach, middle + reach)
    return drawn


Numbers = Sequence[float] | Values
Errors = Sequence[float | None] | Values

_UNKNOWN: Final = math.nan
_DRIFT_END_POINTS: Final = 15
"""Points on each side of the ends of a drift from which its size is estimated."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Parameters of change-point detection."""

    alpha: float = 0.01
    """False alarm probability of a series without changes of up to 200 points, and of every further
    100 points."""
    least: float = 0.005
    """Smallest relevant change, as a fraction."""
    fewest: int = 4
    """Minimum number of points on each side of a change: three bad runs in a row are not a new level."""
    nearest: int = 50
    """Maximum number of points on each side from which the size of a change is estimated."""
    settled_after: int = 100
    """A point is settled once between this many and twice as many points follow it."""
    context: int = 50
    """Maximum number of settled points before the window that are analyzed with it."""


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Final result for the points before `upto`."""

    upto: int = 0
    moves: tuple[Move, ...] = ()
    rests_on: int = 0
    """Number of points that it depends on."""


def find_moves(
    values: Numbers,
    errors: Errors = (),
    *,
    settled: Settled | None = None,
    rules: Rules | None = None,
) -> list[Move]:
    """Return all changes of the series: the settled ones and those among the open points.

    `values` are positive, in order of time, without gaps; `errors` are standard errors of their
    logarithms where known. Only the open points and their context are read.
    """
    rules = rules or Rules()
    settled = settle(values, errors, settled=settled, rules=rules)
    moves = [*settled.moves, *_changes_in_window(values, errors, settled, len(values), rules)]
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
    """Return the settled state advanced as far as the points allow, to store for later points."""
    rules = rules or Rules()
    settled = settled or Settled()
    while len(values) - settled.upto >= 2 * rules.settled_after:
        upto = settled.upto + rules.settled_after
        rests_on = upto + rules.settled_after
        changes = _changes_in_window(values, errors, settled, rests_on, rules)
        settled = Settled(
            upto=upto, moves=(*settled.moves, *_before(changes, upto)), rests_on=rests_on
        )
    return settled


def _changes_in_window(
    values: Numbers,
    errors: Errors,
    settled: Settled,
    end: int,
    rules: Rules,
) -> list[Move]:
    """Return the changes between the settled points and `end`."""
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
        cuts = significant_cuts(stretch, [cut.place for cut in cuts])
    return [
        dataclasses.replace(move, first=move.first + start, last=move.last + start)
        for move in shaped(stretch, cuts)
    ]


def _array(errors: Errors, size: int) -> Values:
    if len(errors) == 0:
        return np.full(size, _UNKNOWN)
    return np.asarray([_UNKNOWN if error is None else error for error in errors], dtype=np.float64)


def _before(moves: list[Move], upto: int) -> list[Move]:
    """Return the moves that start before `upto`; a drift across it is split and merged again later."""
    settled_moves = []
    for move in moves:
        if move.first >= upto:
            break
        progress = (min(move.last, upto) - move.first) / max(move.last - move.first, 1)
        part = 1.0 if move.kind == "step" else progress
        settled_moves.append(
            dataclasses.replace(
                move,
                last=min(move.last, upto),
                shift=part * move.shift,
                low=part * move.low,
                high=part * move.high,
            )
        )
    return settled_moves


def _measured(values: Numbers, drift: Move) -> Move:
    """Return a merged drift with its size estimated from the points around both ends."""
    around = [
        np.log(
            np.asarray(
                values[max(end - _DRIFT_END_POINTS, 0) : end + _DRIFT_END_POINTS], dtype=np.float64
            )
        )
        for end in (drift.first, drift.last)
    ]
    shift = float(np.median(around[1]) - np.median(around[0]))
    # A median of n normal values has the standard error of a mean, times sqrt(pi / 2).
    error = math.sqrt(math.pi / 2.0 * sum(noise_sd(one) ** 2 / max(one.size, 1) for one in around))
    return dataclasses.replace(
        drift, shift=shift, low=shift - 1.96 * error, high=shift + 1.96 * error
    )
