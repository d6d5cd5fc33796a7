"""How much to measure: pairs per launch, launches for a precision, smallest effect to be found.

Works from standard deviations of the log speedup, which for small values are fractions of the
time. Knows nothing of the data or of who starts launches.
"""

from __future__ import annotations

import math
from typing import Final

from torchyard.stats.student import normal_quantile, student_quantile, two_sided_critical

__all__ = [
    "half_width",
    "launches_needed",
    "launches_needed_range",
    "minimum_detectable",
    "pairs_per_launch",
]

_POWER: Final = 0.8
_MOST_LAUNCHES: Final = 10_000_000
_FEWEST_LAUNCHES: Final = 2
# The median of n values varies like the mean of n / (pi/2) values when they are near normal.
_MEDIAN_COST: Final = math.pi / 2.0


def half_width(launch_sd: float, launches: int, *, alpha: float = 0.05) -> float:
    """Of the plain t interval over launches."""
    return two_sided_critical(alpha, launches - 1) * launch_sd / math.sqrt(launches)


def launches_needed(
    launch_sd: float, precision_goal: float, *, alpha: float = 0.05, at_least: int = 2
) -> int | None:
    """The fewest launches whose interval is within the goal; None when there is no such number."""
    low = max(_FEWEST_LAUNCHES, at_least)
    if half_width(launch_sd, low, alpha=alpha) <= precision_goal:
        return low
    if precision_goal <= 0.0:
        return None
    high = low
    while half_width(launch_sd, high, alpha=alpha) > precision_goal:
        low, high = high, high * 2
        if high > _MOST_LAUNCHES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if half_width(launch_sd, middle, alpha=alpha) <= precision_goal:
            high = middle
        else:
            low = middle
    return high


def launches_needed_range(
    launch_sd: float,
    launches: int,
    precision_goal: float,
    *,
    alpha: float = 0.05,
    at_least: int = 2,
    confidence: float = 0.8,
) -> tuple[int, int] | None:
    """Return `launches_needed` for both ends of the confidence interval of the standard deviation.

    The variance of `launches` normal values over the true one is chi-square over its degrees of
    freedom, here by the approximation of Wilson and Hilferty (1931).
    """
    if launches < _FEWEST_LAUNCHES:
        return None
    df = launches - 1.0
    ends = []
    for probability in (0.5 + confidence / 2.0, 0.5 - confidence / 2.0):
        cube_root = (
            1.0 - 2.0 / (9.0 * df) + normal_quantile(probability) * math.sqrt(2.0 / (9.0 * df))
        )
        share = max(cube_root, 0.05) ** 3
        needed = launches_needed(
            launch_sd / math.sqrt(share), precision_goal, alpha=alpha, at_least=at_least
        )
        if needed is None:
            return None
        ends.append(needed)
    return ends[0], ends[1]


def minimum_detectable(launch_sd: float, launches: int, *, alpha: float = 0.05) -> float | None:
    """The effect that a single look finds in 80 % of cases; None below two launches."""
    if launches < _FEWEST_LAUNCHES:
        return None
    quantiles = two_sided_critical(alpha, launches - 1) + student_quantile(_POWER, launches - 1)
    return quantiles * launch_sd / math.sqrt(launches)


def pairs_per_launch(
    *,
    pair_sd: float,
    launch_sd: float,
    launch_cost_s: float,
    pair_cost_s: float,
    pairs_so_far: int | None = None,
    at_least: int = 6,
    at_most: int = 200,
) -> int:
    """Pairs that give the narrowest interval for the time (Kalibera & Jones 2013).

    sqrt(cost of a launch / cost of a pair * pair variance / launch variance). `launch_sd` is the
    spread of launch medians as seen; with `pairs_so_far`, the pairs behind each of them, the part
    that comes from the pairs is taken off first. The clamps keep the launch medians from leaning
    on too few pairs, and launches from never ending when they do not differ.
    """
    if pair_cost_s <= 0.0 or launch_cost_s < 0.0:
        raise ValueError(f"costs must be positive: {launch_cost_s=} {pair_cost_s=}")
    pair_variance = _MEDIAN_COST * pair_sd**2
    between = launch_sd**2
    if pairs_so_far is not None:
        between = max(0.0, between - pair_variance / pairs_so_far)
    cost_ratio = launch_cost_s / pair_cost_s
    if cost_ratio * pair_variance >= between * at_most**2:
        best = at_most if pair_variance > 0.0 else at_least
    else:
        best = math.ceil(math.sqrt(cost_ratio * pair_variance / between))
    return max(at_least, min(at_most, best))
