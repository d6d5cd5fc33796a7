"""The spread between launches as an unknown with a prior: p-values and intervals from few launches.

Effects of launches are y = theta + b + e: the true effect, the deviation of this launch with standard
deviation tau, and the error of its pairs with variance v. With two or three launches the observed
standard deviation hardly determines tau, and the intervals of Student's t, which uses nothing else, are
too wide to be useful. A prior on a grid of values of tau expresses that launches rarely differ by more
than some percent, without assuming it: 80 % of the prior is flat on the log scale
from 0.03 % to 150 %, and 20 % is concentrated around 1.2 %, the typical spread that
docs/explanation/statistics.md reports. Averaged over the prior, levels are exact (theta has a flat
prior); for a given tau they are close, and `benchmarks/simulate_errors.py` measures how close.

Launches can also fall into distant modes (another kernel, another page size). A few launches may all
be of one mode, so a probability of 1.6 / 4^K is reserved for that: then the mean is
normal with a standard deviation of 25 % after two launches and 12 % after more.

`estimate_difference` applies the prior to differences of times, such as the contribution of one
operator: they add up, ratios do not, and they are relative to one fixed time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, variance
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from torchyard.stats.distributions import two_sided_critical

Values = NDArray[np.floating[Any]]

_SMALLEST: Final = 3e-4
_LARGEST: Final = 1.5
_POINTS: Final = 121
_COARSE_POINTS: Final = 41
_FLAT_SHARE: Final = 0.8
_TYPICAL: Final = 0.012
_TYPICAL_LOG_SD: Final = 0.8
_FIRST_MODE_SD: Final = 0.25
_MODE_SD: Final = 0.12
_ONE_SIGMA_LEVEL: Final = math.erfc(1.0 / math.sqrt(2.0))
_MAX_DEGREES: Final = 1000.0
_WIDEST: Final = 20.0
_SCALED_ABOVE: Final = 0.3
"""Observed spread above which results are those of this spread, scaled: the grid ends at 150 %."""
_MAX_STEPS: Final = 100
_NEGLIGIBLE: Final = 1e-12


@dataclass(frozen=True, kw_only=True)
class LaunchSummary:
    """Input of the model: number of launches, standard deviation, variance that pairs imply."""

    launches: int
    spread: float
    """Observed standard deviation between launches."""
    pair_variance: float = 0.0
    """Variance of the effect of a launch that its pairs alone imply."""
    mode_sd: float | None = None
    """Standard deviation of modes, by default that of comparisons."""


@lru_cache(maxsize=8)
def _grid(points: int = _POINTS) -> tuple[Values, Values]:
    """Return the values of tau and the logarithms of their prior weights."""
    spreads = np.geomspace(_SMALLEST, _LARGEST, points)
    distance = np.log(spreads / _TYPICAL) / _TYPICAL_LOG_SD
    peak = np.exp(-0.5 * distance**2)
    weights = _FLAT_SHARE / points + (1.0 - _FLAT_SHARE) * peak / peak.sum()
    return spreads, np.log(weights)


def draw_spreads(rng: np.random.Generator, count: int) -> Values:
    """Draw values of tau from the prior."""
    spreads, log_weights = _grid()
    drawn: Values = rng.choice(spreads, size=count, p=np.exp(log_weights))
    return drawn


def p_values(
    means: Values,
    spreads: Values,
    launches: int,
    *,
    pair_variance: float | Values = 0.0,
    mode_sd: float | None = None,
    coarse: bool = False,
) -> Values:
    """Return the two-sided p-value of no effect for each pair of mean and standard deviation.

    `coarse` uses fewer grid points and single precision, which is enough for many simulated values
    (the relative error is mostly below 1 %).
    """
    # Beyond the grid, only the ratio of mean and spread counts.
    scale = np.minimum(1.0, _SCALED_ABOVE / np.maximum(spreads, _NEGLIGIBLE))
    means, spreads, pair_variance = means * scale, spreads * scale, pair_variance * scale**2
    if coarse:
        means, spreads = means.astype(np.float32), spreads.astype(np.float32)
    sigmas, weights = _posterior(
        spreads, launches, pair_variance, _COARSE_POINTS if coarse else _POINTS
    )
    scaled = np.abs(means)[:, np.newaxis] * (math.sqrt(launches) / sigmas)
    ordinary = np.einsum("ij,ij->i", weights, two_sided_normal(scaled))
    share, mode_sd = _mode(launches, mode_sd)
    modes = two_sided_normal(np.abs(means) / mode_sd)
    result: Values = np.minimum(1.0, (1.0 - share) * ordinary + share * modes)
    return result


def half_width(summary: LaunchSummary, level: float) -> float:
    """Return the half-width of the interval of the effect that excludes 0 exactly if p < level."""
    if level <= 0.0:
        return math.inf
    if level >= 1.0:
        return 0.0
    if summary.spread > _SCALED_ABOVE:
        scale = summary.spread / _SCALED_ABOVE
        scaled = LaunchSummary(
            launches=summary.launches,
            spread=_SCALED_ABOVE,
            pair_variance=summary.pair_variance / scale**2,
            mode_sd=summary.mode_sd,
        )
        return scale * half_width(scaled, level)
    sigmas, weights = _posterior(
        np.asarray([summary.spread]), summary.launches, summary.pair_variance, _POINTS
    )
    matters = weights[0] > _NEGLIGIBLE
    scale, weights = (math.sqrt(summary.launches) / sigmas)[matters], weights[0][matters]
    share, mode_sd = _mode(summary.launches, summary.mode_sd)

    def excess(width: float) -> float:
        """Return log(p / level) at this width; falls with the width."""
        ordinary = float(weights @ two_sided_normal(width * scale))
        p = (1.0 - share) * ordinary + share * math.erfc(width / mode_sd / math.sqrt(2.0))
        return math.log(max(p, 1e-300) / level)

    low, high = 0.0, float(1.0 / (weights @ scale))
    at_low, at_high = -math.log(level), excess(high)
    while at_high > 0.0:
        low, at_low, high = high, at_high, 2.0 * high
        if high > _WIDEST:
            return math.inf
        at_high = excess(high)
    for _ in range(_MAX_STEPS):
        # False position with the Illinois rule: halve the value of an end that was kept twice.
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        value = excess(middle)
        if value > 0.0:
            low, at_low, at_high = middle, value, at_high / 2.0
        else:
            high, at_high, at_low = middle, value, at_low / 2.0
        if high - low <= 1e-10 * high or abs(value) < _NEGLIGIBLE:
            break
    return high


def effective_degrees(summary: LaunchSummary, level: float) -> float:
    """Return the degrees of freedom of the Student distribution whose tail is as heavy.

    That is, with the same ratio of half-widths at `level` and at one standard error.
    """
    inner = half_width(summary, _ONE_SIGMA_LEVEL)
    if inner <= 0.0:
        return _MAX_DEGREES
    ratio = half_width(summary, level) / inner
    degrees, ratios = _student_ratios(level)
    return float(np.exp(np.interp(-ratio, -ratios, np.log(degrees))))


@lru_cache(maxsize=64)
def _student_ratios(level: float) -> tuple[Values, Values]:
    """Return degrees of freedom and the ratio of Student's quantiles at `level` and at one sigma."""
    degrees = np.geomspace(1.0, _MAX_DEGREES, 33)
    ratios = [
        two_sided_critical(level, one) / two_sided_critical(_ONE_SIGMA_LEVEL, one)
        for one in degrees.tolist()
    ]
    return degrees, np.asarray(ratios)


def typical_spread(summary: LaunchSummary | None = None) -> float:
    """Return the root mean square of tau given the launches, at most 40 %; without any, 1.2 %."""
    if summary is None or summary.launches < 2:  # noqa: PLR2004
        return _TYPICAL
    taus, _ = _grid()
    _, weights = _posterior(
        np.asarray([summary.spread]), summary.launches, summary.pair_variance, _POINTS
    )
    # The geometric mean: the flat prior has no useful arithmetic mean after two launches.
    return float(np.exp(weights[0] @ np.log(taus)))


def _posterior(
    spreads: Values, launches: int, pair_variance: float | Values, points: int
) -> tuple[Values, Values]:
    """Return sigma of each grid point and its posterior weights, one row per standard deviation."""
    taus, log_prior = (values.astype(spreads.dtype) for values in _grid(points))
    variances = taus**2 + np.asarray(pair_variance, dtype=spreads.dtype)[..., np.newaxis]
    degrees = launches - 1
    squares = spreads[:, np.newaxis] ** 2
    logs = log_prior - degrees * (0.5 * np.log(variances) + squares / (2.0 * variances))
    logs -= logs.max(axis=1, keepdims=True)
    weights = np.exp(logs)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.sqrt(variances), weights


def _mode(launches: int, mode_sd: float | None) -> tuple[float, float]:
    """Return the probability that all launches are of one mode, and the standard deviation of modes."""
    if mode_sd is None:
        mode_sd = _FIRST_MODE_SD if launches <= 2 else _MODE_SD  # noqa: PLR2004
    return 1.6 / 4.0**launches, mode_sd


def two_sided_normal(sizes: Values) -> Values:
    """Return P(|Z| >= size) for sizes >= 0 with a relative error below 2e-7 (Chebyshev fit of erfc)."""
    z = sizes / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.5 * z)
    series = np.full_like(t, _ERFC[-1])
    for coefficient in _ERFC[-2::-1]:
        series = series * t + coefficient
    result: Values = t * np.exp(-z * z + series)
    return result


_ERFC: Final = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Mean over launches, confidence interval and p-value of no difference."""

    mean: float
    low: float
    high: float
    p_value: float


def estimate_difference(launches: Sequence[Sequence[float]], *, alpha: float = 0.05) -> Difference:
    """Estimate from the relative differences in the rounds of each launch.

    With a single launch, the interval is infinite: the variation between launches is unknown. Modes
    of single operators are further apart than those of whole programs: 25 % also after more than two
    launches.
    """
    effects = [fmean(rounds) for rounds in launches]
    mean, count = fmean(effects), len(effects)
    if count == 1:
        return Difference(mean=mean, low=-math.inf, high=math.inf, p_value=1.0)
    spread = math.sqrt(variance(effects))
    within = [variance(rounds) / len(rounds) for rounds in launches if len(rounds) > 1]
    summary = LaunchSummary(
        launches=count,
        spread=spread,
        pair_variance=fmean(within) if within else 0.0,
        mode_sd=_FIRST_MODE_SD,
    )
    width = half_width(summary, alpha)
    p_value = p_values(
        np.asarray([mean]),
        np.asarray([spread]),
        count,
        pair_variance=summary.pair_variance,
        mode_sd=summary.mode_sd,
    )
    return Difference(mean=mean, low=mean - width, high=mean + width, p_value=float(p_value[0]))
