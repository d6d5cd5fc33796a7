"""What the noise of a series is like: its size, how alike neighbours are, how sure each value is.

The size comes from differences between neighbours, which a few steps or a slow drift hardly
touch; those that stand out are left out, for the steps' and the outliers' sake. Knows nothing of
how changes are found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from torchyard.stats.change_points_ranks import Values

__all__ = ["calmed", "independent_share", "noise_sd", "weights_of"]

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
