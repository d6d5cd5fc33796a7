"""When to stop measuring: interim analyses, and how many launches and pairs are needed.

A group sequential design on the t scale: each interim analysis may spend a part of alpha,
cumulatively `alpha * fraction**3` (Lan & DeMets 1983; power family of Jennison & Turnbull 2000),
where the fraction is the measuring time used divided by the time budget. The joint distribution of
the statistics has no closed form for Student's t, but under the null hypothesis they are pivotal:
launches drawn from a standard normal distribution give their exact joint distribution. The
boundaries come from one fixed set of simulated paths. Where a probability is too small for the
paths, Student's tail is used, which can only be larger.

Planning works from standard deviations of the log speedup: pairs per launch, launches for a given
precision, and the smallest effect that can be detected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.stats.distributions import (
    normal_quantile,
    student_quantile,
    two_sided_critical,
    two_sided_p,
)

PATHS: Final = 131_072
"""Standard error of the simulated alpha: sqrt(0.05 * 0.95 / PATHS) = 0.0006."""
_MIN_TAIL_PATHS: Final = 100
"""Minimum number of paths to estimate a p-value from (10 % standard error)."""
_MIN_BOUNDARY_PATHS: Final = 20
"""Minimum number of paths to set a boundary from. A boundary from the n-th largest path spends alpha
without bias, and errors of the analyses average out in the sum, so this may be smaller."""
_SEED: Final = 20_011
_SPENDING_POWER: Final = 3
_MAX_INCREMENT_FACTOR: Final = 1.25
_RECURSION_STEP: Final = 100


@dataclass(frozen=True, kw_only=True)
class InterimAnalysis:
    """One interim analysis: the number of launches, and the used fraction of the time budget.

    The fraction is 1 only if time or launches ran out; a comparison that stopped because it was
    decided keeps the fraction at which it stopped.
    """

    launches: int
    fraction: float


def cumulative_alpha(alpha: float, fraction: float) -> float:
    """Return the cumulative alpha that may be spent at this fraction of the time budget."""
    return alpha * min(1.0, fraction) ** _SPENDING_POWER


def boundaries(analyses: Sequence[InterimAnalysis], alpha: float) -> tuple[float, ...]:
    """Return the |t| boundary of each analysis; the probability of crossing any by chance is <= alpha."""
    plan = tuple(analyses)
    _check(plan, alpha)
    if len(plan) == 1:
        # A single analysis: Student's distribution is exact.
        level = cumulative_alpha(alpha, plan[0].fraction)
        return (two_sided_critical(level, plan[0].launches - 1),)
    return _stage_of(plan, alpha).boundaries


def p_value(
    analyses: Sequence[InterimAnalysis], statistics: Sequence[float], alpha: float
) -> float:
    """Return the two-sided p-value of the t statistics so far, one per analysis.

    Stage-wise ordering (Tsiatis, Rosner & Mehta 1984): crossing at an earlier analysis is stronger
    evidence than crossing at a later one, so p is the alpha spent before the first crossing plus the
    probability of reaching this analysis uncrossed and exceeding its statistic. It is at most alpha
    exactly if the boundary of the last analysis is exceeded. If an interim analysis was not crossed,
    measuring may have stopped for another reason (`same`), so its p is the Bonferroni bound
    nominal / (share of alpha of this analysis), which is valid at any stopping point.
    """
    plan = tuple(analyses)
    limits = boundaries(plan, alpha)
    sizes = [abs(statistic) for statistic in statistics]
    if len(sizes) != len(plan):
        raise ValueError(f"{len(sizes)} statistics for {len(plan)} analyses")
    if sizes[-1] > limits[-1]:
        first = next(k for k, size in enumerate(sizes) if size > limits[k])
        spent = cumulative_alpha(alpha, plan[first].fraction)
        return min(spent, _tail_after(plan[: first + 1], sizes[first], alpha))
    if plan[-1].fraction >= 1.0:
        return min(1.0, max(alpha, _tail_after(plan, sizes[-1], alpha)))
    before = plan[-2].fraction if len(plan) > 1 else 0.0
    share = cumulative_alpha(1.0, plan[-1].fraction) - cumulative_alpha(1.0, before)
    nominal = two_sided_p(sizes[-1], plan[-1].launches - 1)
    return min(1.0, nominal / share) if share > 0.0 else 1.0


def _tail_after(plan: tuple[InterimAnalysis, ...], size: float, alpha: float) -> float:
    """Return alpha spent before the last analysis + P(not crossed before, |T| there >= size)."""
    student = two_sided_p(size, plan[-1].launches - 1)
    if len(plan) == 1:
        return student
    before = _stage_of(plan[:-1], alpha)
    path_sizes = _path_sizes(plan[-1].launches)[before.uncrossed]
    count = int(np.count_nonzero(path_sizes >= size))
    # Both are upper bounds and both fall with the size, so the smaller one is valid and monotone.
    reached = min(student, max(count, _MIN_TAIL_PATHS) / PATHS)
    return cumulative_alpha(alpha, plan[-2].fraction) + reached


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stage:
    boundaries: tuple[float, ...]
    uncrossed: NDArray[np.bool_]
    """Paths that have not crossed any boundary up to this analysis."""


def _stage_of(plan: tuple[InterimAnalysis, ...], alpha: float) -> _Stage:
    # An uncached call recurses once per analysis; caching every 100th limits the depth.
    for end in range(_RECURSION_STEP, len(plan), _RECURSION_STEP):
        _stage(plan[:end], alpha)
    return _stage(plan, alpha)


@lru_cache(maxsize=256)
def _stage(plan: tuple[InterimAnalysis, ...], alpha: float) -> _Stage:
    analysis = plan[-1]
    sizes = _path_sizes(analysis.launches)
    may_spend = cumulative_alpha(alpha, analysis.fraction)
    if len(plan) == 1:
        limit = two_sided_critical(may_spend, analysis.launches - 1)
        return _Stage(boundaries=(limit,), uncrossed=sizes <= limit)
    before = _stage(plan[:-1], alpha)
    # Bonferroni: valid whatever happened before, and the only choice far out in the tail.
    increment = may_spend - cumulative_alpha(alpha, plan[-2].fraction)
    limit = two_sided_critical(increment, analysis.launches - 1)
    reaching = sizes[before.uncrossed]
    # Alpha that earlier analyses left unspent, because their limits were conservative, is spent here.
    spendable = int(may_spend * PATHS) - (PATHS - reaching.size)
    if analysis.fraction < 1.0:
        # Gradually: spending all of it at once would make the limits oscillate.
        spendable = min(spendable, int(_MAX_INCREMENT_FACTOR * increment * PATHS))
    if spendable >= _MIN_BOUNDARY_PATHS:
        rank = reaching.size - spendable - 1
        limit = min(limit, float(np.partition(reaching, rank)[rank]))
    return _Stage(
        boundaries=(*before.boundaries, limit),
        uncrossed=before.uncrossed & (sizes <= limit),
    )


class _Paths:
    """|t| of every path after 2, 3, ... launches; grown on demand, the same in every process."""

    def __init__(self) -> None:
        self._sizes: list[NDArray[np.float32]] = []
        self._mean = np.zeros(PATHS)
        self._squares = np.zeros(PATHS)
        self._count = 0

    def sizes(self, launches: int) -> NDArray[np.float32]:
        while self._count < launches:
            self._add_launch()
        return self._sizes[launches - 2]

    def _add_launch(self) -> None:
        # Each launch has its own random stream, so that more launches change no earlier one.
        drawn = np.random.default_rng((_SEED, self._count)).standard_normal(PATHS)
        self._count += 1
        step = drawn - self._mean
        self._mean += step / self._count
        self._squares += step * (drawn - self._mean)
        if self._count > 1:
            scale = np.sqrt(self._squares / (self._count * (self._count - 1)))
            self._sizes.append(np.abs(self._mean / scale).astype(np.float32))


@cache
def _paths() -> _Paths:
    return _Paths()


def _path_sizes(launches: int) -> NDArray[np.float32]:
    return _paths().sizes(launches)


def _check(plan: tuple[InterimAnalysis, ...], alpha: float) -> None:
    if not plan:
        raise ValueError("a sequential design needs at least one analysis")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must lie between 0 and 1, not {alpha!r}")
    launches, fraction = 2, 0.0
    for analysis in plan:
        if analysis.launches < launches or not analysis.fraction >= fraction:
            raise ValueError(
                f"analyses must increase in launches (at least 2) and fraction, but {analysis} follows "
                f"{launches} launches and fraction {fraction}"
            )
        launches, fraction = analysis.launches, analysis.fraction


_POWER: Final = 0.8
_MAX_LAUNCHES: Final = 10_000_000
_MIN_LAUNCHES: Final = 2
# The median of n values varies like the mean of n / (pi/2) values when they are near normal.
_MEDIAN_VARIANCE: Final = math.pi / 2.0


def half_width(launch_sd: float, launches: int, *, alpha: float = 0.05) -> float:
    """Return the half-width of the plain t interval over launches."""
    return two_sided_critical(alpha, launches - 1) * launch_sd / math.sqrt(launches)


def launches_needed(
    launch_sd: float, precision_goal: float, *, alpha: float = 0.05, at_least: int = 2
) -> int | None:
    """Return the fewest launches whose interval is within the goal; None if there is no such number."""
    low = max(_MIN_LAUNCHES, at_least)
    if half_width(launch_sd, low, alpha=alpha) <= precision_goal:
        return low
    if precision_goal <= 0.0:
        return None
    high = low
    while half_width(launch_sd, high, alpha=alpha) > precision_goal:
        low, high = high, high * 2
        if high > _MAX_LAUNCHES:
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
    if launches < _MIN_LAUNCHES:
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
    """Return the effect that a single analysis detects with 80 % power; None below two launches."""
    if launches < _MIN_LAUNCHES:
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
    """Return the pairs per launch that give the narrowest interval per time (Kalibera & Jones 2013).

    sqrt(cost of a launch / cost of a pair * pair variance / launch variance). `launch_sd` is the
    observed standard deviation of launch medians; with `pairs_so_far`, the pairs behind each of them,
    the variance due to pairs is subtracted first. The limits keep launch medians from resting on too
    few pairs, and launches from never ending if they do not differ.
    """
    if pair_cost_s <= 0.0 or launch_cost_s < 0.0:
        raise ValueError(f"costs must be positive: {launch_cost_s=} {pair_cost_s=}")
    pair_variance = _MEDIAN_VARIANCE * pair_sd**2
    between = launch_sd**2
    if pairs_so_far is not None:
        between = max(0.0, between - pair_variance / pairs_so_far)
    cost_ratio = launch_cost_s / pair_cost_s
    if cost_ratio * pair_variance >= between * at_most**2:
        best = at_most if pair_variance > 0.0 else at_least
    else:
        best = math.ceil(math.sqrt(cost_ratio * pair_variance / between))
    return max(at_least, min(at_most, best))
