"""Launch-level statistics: one effect per launch, and the variation within and between launches.

A launch has one memory layout, so its pairs share an error that more pairs do not reduce; the launch
is the independent unit. The pairs set a lower bound on the variance between
launches: medians of noisy pairs cannot be more precise than the pairs allow, even if a few launches
happen to agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.errors import Untrustworthy

Effects = NDArray[np.float64]

SD_FLOOR: Final = 1e-6
"""Lower bound of the standard deviation between launches: smaller values reflect the resolution of the
clock, and would cause divisions by zero."""
_MAD_TO_SD: Final = 1.4826
_MEDIAN_VARIANCE: Final = math.pi / 2.0
"""Variance of the median of n normal values, times n, over the variance of one value."""
_MIN_LAUNCHES_FOR_DEPENDENCE: Final = 8
_DEPENDENT_Z: Final = 1.645
"""One-sided 5 %."""
_GRID: Final = 4097
"""Points on which the beta distribution of a median's rank is integrated."""


def launch_effects(launches: Sequence[Sequence[float]]) -> Effects:
    """Return the median log speedup of each launch that has a clean pair, in order."""
    effects = []
    for number, pairs in enumerate(launches):
        values = np.asarray(pairs, dtype=np.float64)
        _refuse_non_finite(values, number)
        if values.size:
            effects.append(_median(values))
    return np.asarray(effects, dtype=np.float64)


def launch_sd(effects: Effects) -> float | None:
    """Return the standard deviation between launches; None below two launches."""
    return float(np.std(effects, ddof=1)) if effects.size > 1 else None


def dependence(effects: Effects) -> float:
    """Return the lag-1 correlation of successive launches if significantly positive (5 %), else 0.

    Under independence it is near normal with mean -1 / K and variance 1 / K (Moran 1948). Returns 0
    below eight launches.
    """
    count = effects.size
    deviations = effects - float(np.mean(effects)) if count else effects
    squares = float(deviations @ deviations)
    if count < _MIN_LAUNCHES_FOR_DEPENDENCE or squares <= count * SD_FLOOR**2:
        return 0.0
    correlation = float(deviations[1:] @ deviations[:-1]) / squares
    return correlation if (correlation + 1.0 / count) * math.sqrt(count) > _DEPENDENT_Z else 0.0


def pair_sd(launches: Sequence[Sequence[float]]) -> float | None:
    """Return the robust standard deviation of pairs around their launch median, pooled over launches.

    None if no launch has two pairs.
    """
    residuals = _residuals(launches)
    return None if residuals is None else _MAD_TO_SD * _median(np.abs(residuals))


def median_variance(mean_variance: float) -> float:
    """Return the variance of the median of near-normal values, from the variance of their mean."""
    return _MEDIAN_VARIANCE * mean_variance


def pair_floor(launches: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of launch medians that pairs alone imply.

    The larger one of two estimates. Both pool the residuals of all launches. The first is
    (pi / 2) * pair_sd^2 * mean(1 / n), which assumes a distribution that is near normal in its
    middle. The second is the variance of a median of n values drawn from the residuals (Maritz &
    Jarrett 1978): it is also large with two modes, between which the median of few pairs jumps while
    the median absolute deviation stays small. 0 when no launch has two pairs.
    """
    residuals = _residuals(launches)
    if residuals is None:
        return 0.0
    ordered = np.sort(residuals)
    near_normal = median_variance((_MAD_TO_SD * _median(np.abs(residuals))) ** 2)
    sizes = [len(pairs) for pairs in launches if len(pairs)]
    variances = []
    for size in sizes:
        weights = _rank_weights(ordered.size, size)
        centre = float(weights @ ordered)
        resampled = float(weights @ (ordered - centre) ** 2)
        variances.append(max(near_normal / size, resampled))
    return math.sqrt(math.fsum(variances) / len(variances))


def _residuals(launches: Sequence[Sequence[float]]) -> Effects | None:
    """Return deviations of pairs from their launch median, corrected for the fitted median.

    The middle value of an odd number of pairs deviates by 0 by construction and is excluded, so that the
    median absolute deviation is unbiased. The deviations of an even number are all too small: by sqrt(2)
    for two pairs, else by about n / (n - 1.3) (simulated: 4 % at 4 pairs, below 1 % from 6 on).
    """
    residuals = []
    for pairs in launches:
        values = np.asarray(pairs, dtype=np.float64)
        size = values.size
        if size < 2:  # noqa: PLR2004
            continue
        deviations = np.sort(values) - _median(values)
        if size % 2:
            residuals.append(np.delete(deviations, size // 2))
        else:
            factor = math.sqrt(2.0) if size == 2 else size / (size - 1.3)  # noqa: PLR2004
            residuals.append(deviations * factor)
    return np.concatenate(residuals) if residuals else None


@lru_cache(maxsize=1024)
def _rank_weights(values: int, size: int) -> Effects:
    """Return P(the median of `size` draws is the j-th smallest of `values` values), for each j.

    The rank of a median follows a beta distribution with both parameters (size + 1) / 2.
    """
    shape = (size - 1.0) / 2.0
    points = np.linspace(0.0, 1.0, _GRID)
    inside = np.clip(points * (1.0 - points) * 4.0, 1e-300, 1.0)
    density = inside**shape
    sums = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    weights: Effects = np.diff(np.interp(np.arange(values + 1) / values, points, sums / sums[-1]))
    return weights


def _median(values: Effects) -> float:
    """Return the median; several times faster than numpy on the few values of a launch."""
    ordered = np.sort(values)
    return float(ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2.0


def _refuse_non_finite(values: Effects, number: int) -> None:
    if not math.isfinite(float(values.sum())):
        place = int(np.argmin(np.isfinite(values)))
        raise Untrustworthy(
            f"launch {number}, pair {place}: the log speedup is {values[place]}",
            why="a block of this pair has a duration of zero or not a number",
            hint="use longer blocks (settings.block), and check the clock of the worker",
        )
