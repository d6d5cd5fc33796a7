"""Rank tests: whether one stretch of a series lies higher or lower than another.

The Mann-Whitney test only asks which of two values is larger. Under the null hypothesis every
order of the values is equally likely, so the p-value can be counted for any noise distribution:
outliers, heavy tails and machines with two speeds do not raise false alarms, and no variance has
to be estimated. Values may have weights.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.stats.distributions import normal_quantile, two_sided_p

Values = NDArray[np.float64]

_COUNTED_UP_TO: Final = 20
"""Size of the smaller side up to which orders are counted; above, Student's t on ranks is accurate
(Conover & Iman 1981)."""
_COUNTED_FROM: Final = 1.5
"""Standard deviations below which the p-value need not be exact ..."""
_COUNTED_ALWAYS: Final = 30
"""... unless there are too few values for the approximation."""


def weighted_ranks(values: Values, weights: Values) -> Values:
    """Return the weight of all smaller values, plus half that of equal ones, for each value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    before = np.concatenate(([0.0], np.cumsum(weights[order])))
    first = np.searchsorted(ordered, values, side="left")
    past = np.searchsorted(ordered, values, side="right")
    ranks: Values = (before[first] + before[past]) / 2.0
    return ranks


def mann_whitney_p(one: int, other: int, larger_share: float) -> float:
    """Return the two-sided p-value of the share of pairs in which the value of the first side is larger.

    Exact if it is small and one side is small. Ties make it conservative.
    """
    small, large = sorted((one, other))
    if small < 1:
        return 1.0
    uneven = min(larger_share, 1.0 - larger_share)
    total = small + large
    score = (0.5 - uneven) * math.sqrt(12.0 * small * large / (total + 1))
    if small <= _COUNTED_UP_TO and (score > _COUNTED_FROM or total <= _COUNTED_ALWAYS):
        # Round a share between two possible ones to the less significant one.
        fewest = math.ceil(uneven * small * large - 1e-9)
        table = _orders(small, large)
        return min(1.0, 2.0 * float(table[min(fewest, table.size - 1)]))
    residual = max(total - 1 - score**2, 1e-9)
    return two_sided_p(score * math.sqrt(max(total - 2, 1) / residual), max(total - 2.0, 1.0))


@lru_cache(maxsize=2048)
def _orders(small: int, large: int) -> Values:
    """Return P(U <= u) for u up to the middle: cumulative coefficients of a Gaussian binomial.

    Multiplied and divided factor by factor, so that the small counts of the tail come from small
    counts only and stay exact.
    """
    size = small * large // 2 + 1
    counts = np.zeros(size)
    counts[0] = 1.0
    for factor in range(1, small + 1):
        shift = large + factor
        if shift < size:
            counts[shift:] -= counts[:-shift].copy()
        padded = np.zeros(-(-size // factor) * factor)
        padded[:size] = counts
        counts = np.cumsum(padded.reshape(-1, factor), axis=0).reshape(-1)[:size]
    below: Values = np.cumsum(counts) / math.comb(small + large, small)
    return below


def shift_between(
    before: tuple[Values, Values],
    after: tuple[Values, Values],
    *,
    independent_share: float = 1.0,
    alpha: float = 0.05,
) -> tuple[float, float, float]:
    """Return the shift of the second side over the first, and the ends of its interval.

    Median of all differences between the sides (Hodges & Lehmann 1963); the interval contains the
    shifts that the rank test does not reject. Each side is values and weights. `independent_share` is
    the effective sample size per value.
    """
    differences = (after[0][:, np.newaxis] - before[0][np.newaxis, :]).ravel()
    weights = (after[1][:, np.newaxis] * before[1][np.newaxis, :]).ravel()
    order = np.argsort(differences)
    ordered = differences[order]
    below = np.cumsum(weights[order])
    below = (below - weights[order] / 2.0) / below[-1]
    sizes = [independent_share * _effective_size(side[1]) for side in (before, after)]
    product, total = sizes[0] * sizes[1], sizes[0] + sizes[1]
    reach = normal_quantile(1.0 - alpha / 2.0) * math.sqrt((total + 1.0) / (12.0 * product))
    low, middle, high = np.interp([0.5 - reach, 0.5, 0.5 + reach], below, ordered)
    return float(middle), float(low), float(high)


def _effective_size(weights: Values) -> float:
    """Return the effective number of values of equal weight."""
    return float(weights.sum()) ** 2 / float(weights @ weights)
