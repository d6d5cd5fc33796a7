"""When to stop measuring: interim analyses, and how many launches are needed.

A group sequential design on nominal p-values (`stats.launch_model`): each interim analysis may spend a
part of alpha, cumulatively `alpha * (0.2 + 0.8 * fraction**3)` (Lan & DeMets 1983; power family of
Jennison & Turnbull 2000), where the fraction is the measuring time used divided by the time budget.
After two launches at most a tenth of alpha is spent and after three at most three quarters, also if
time is up: two launches decide large effects only. Successive p-values are correlated, and their joint
distribution has no closed form; the levels come from one fixed set of launches that is drawn from
the model with its prior. Where a probability is too small for the paths, the nominal p-value is used,
which can only be larger.

Planning works from standard deviations of the log speedup: launches for a given precision, the
smallest effect that can be detected, and the chance that further launches lead to a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.stats import launch_model
from torchyard.stats.distributions import normal_quantile, student_quantile, two_sided_critical
from torchyard.stats.launch_model import LaunchSummary

PATHS: Final = 32_768
"""Standard error of the simulated alpha: sqrt(0.05 * 0.95 / PATHS) = 0.0012."""
_MIN_TAIL_PATHS: Final = 100
"""Minimum number of paths to estimate a p-value from (10 % standard error)."""
_MIN_LEVEL_PATHS: Final = 20
"""Minimum number of paths to set a level from. A level from the n-th smallest path spends alpha
without bias, and errors of the analyses average out in the sum, so this may be smaller."""
_SEED: Final = 20_011
_SPENDING_POWER: Final = 3
_EARLY_SHARE: Final = 0.2
"""Share of alpha that may be spent however early the analysis is, so that large effects are decided early."""
_LARGEST_SHARES: Final = {2: 0.1, 3: 0.75}
"""Largest share of alpha after this number of launches, because the result depends most on the prior."""
_CROSSED_SHARE: Final = 0.6
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


def cumulative_alpha(alpha: float, analysis: InterimAnalysis) -> float:
    """Return the cumulative alpha that may be spent up to this analysis."""
    used = min(1.0, analysis.fraction) ** _SPENDING_POWER
    share = _EARLY_SHARE + (1.0 - _EARLY_SHARE) * used
    return alpha * min(share, _LARGEST_SHARES.get(analysis.launches, 1.0))


def nominal_levels(analyses: Sequence[InterimAnalysis], alpha: float) -> tuple[float, ...]:
    """Return the level of the nominal p-value at each analysis.

    The probability that any nominal p-value is below its level by chance is at most alpha.
    """
    plan = tuple(analyses)
    _check(plan, alpha)
    if len(plan) == 1:
        # A single analysis needs no paths: averaged over the prior, nominal levels are exact.
        return (cumulative_alpha(alpha, plan[0]),)
    return _stage_of(plan, alpha).levels


def interval_level(
    analyses: Sequence[InterimAnalysis], nominal_ps: Sequence[float], alpha: float
) -> float:
    """Return the level at which the nominal interval covers the truth with probability 1 - alpha.

    An analysis that crossed no level has the repeated interval, at its own level: it is valid at any
    stopping point. Measuring that stops because a level was crossed does not need that: the interval
    of the stage-wise ordering is that of a single analysis at the first one, and close to it later.
    0.6 * alpha is what simulations need for the coverage at the stopping point
    (`benchmarks/simulate_cost.py`). The interval excludes 0 exactly if the level was crossed.
    """
    level = nominal_levels(analyses, alpha)[-1]
    if nominal_ps[-1] >= level:
        return level
    return alpha if len(analyses) == 1 else max(level, _CROSSED_SHARE * alpha)


def p_value(
    analyses: Sequence[InterimAnalysis], nominal_ps: Sequence[float], alpha: float
) -> float:
    """Return the two-sided p-value from the nominal p-values so far, one per analysis.

    Stage-wise ordering (Tsiatis, Rosner & Mehta 1984): crossing at an earlier analysis is stronger
    evidence than crossing at a later one, so p is the alpha spent before the first crossing plus the
    probability of reaching this analysis uncrossed and being below its nominal p-value. It is at most
    alpha exactly if the level of the last analysis is crossed. If an interim analysis was not
    crossed, measuring may have stopped for another reason (`same`), so its p is the Bonferroni bound
    nominal / (share of alpha of this analysis), which is valid at any stopping point.
    """
    plan = tuple(analyses)
    levels = nominal_levels(plan, alpha)
    if len(nominal_ps) != len(plan):
        raise ValueError(f"{len(nominal_ps)} p-values for {len(plan)} analyses")
    if nominal_ps[-1] < levels[-1]:
        first = next(k for k, nominal in enumerate(nominal_ps) if nominal < levels[k])
        spent = cumulative_alpha(alpha, plan[first])
        return min(spent, _tail_after(plan[: first + 1], nominal_ps[first], alpha))
    if cumulative_alpha(alpha, plan[-1]) >= alpha:
        return min(1.0, max(alpha, _tail_after(plan, nominal_ps[-1], alpha)))
    before = cumulative_alpha(alpha, plan[-2]) if len(plan) > 1 else 0.0
    share = (cumulative_alpha(alpha, plan[-1]) - before) / alpha
    return min(1.0, max(alpha, nominal_ps[-1] / share)) if share > 0.0 else 1.0


def _tail_after(plan: tuple[InterimAnalysis, ...], nominal: float, alpha: float) -> float:
    """Return alpha spent before the last analysis + P(not crossed before, p there <= nominal)."""
    if len(plan) == 1:
        return nominal
    before = _stage_of(plan[:-1], alpha)
    path_ps = _path_ps(plan[-1].launches)[before.uncrossed]
    count = int(np.count_nonzero(path_ps <= nominal))
    # Both are upper bounds and both fall with the p-value, so the smaller one is valid and monotone.
    reached = min(nominal, max(count, _MIN_TAIL_PATHS) / PATHS)
    return cumulative_alpha(alpha, plan[-2]) + reached


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stage:
    levels: tuple[float, ...]
    uncrossed: NDArray[np.bool_]
    """Paths that have not crossed any level up to this analysis."""


def _stage_of(plan: tuple[InterimAnalysis, ...], alpha: float) -> _Stage:
    # An uncached call recurses once per analysis; caching every 100th limits the depth.
    for end in range(_RECURSION_STEP, len(plan), _RECURSION_STEP):
        _stage(plan[:end], alpha)
    return _stage(plan, alpha)


@lru_cache(maxsize=256)
def _stage(plan: tuple[InterimAnalysis, ...], alpha: float) -> _Stage:
    analysis = plan[-1]
    may_spend = cumulative_alpha(alpha, analysis)
    path_ps = _path_ps(analysis.launches)
    if len(plan) == 1:
        return _Stage(levels=(may_spend,), uncrossed=path_ps >= may_spend)
    before = _stage(plan[:-1], alpha)
    # Bonferroni: valid for any earlier result, and the only choice far out in the tail.
    increment = may_spend - cumulative_alpha(alpha, plan[-2])
    level = max(0.0, increment)
    reaching = path_ps[before.uncrossed]
    # Alpha that earlier analyses left unspent, because their levels were conservative, is spent here.
    spendable = int(may_spend * PATHS) - (PATHS - reaching.size)
    if analysis.fraction < 1.0:
        # Gradually: spending all of it at once would make the levels oscillate.
        spendable = min(spendable, int(_MAX_INCREMENT_FACTOR * increment * PATHS))
    if spendable >= _MIN_LEVEL_PATHS:
        level = min(alpha, max(level, float(np.partition(reaching, spendable)[spendable])))
    return _Stage(levels=(*before.levels, level), uncrossed=before.uncrossed & (path_ps >= level))


class _Paths:
    """Nominal p-values of every path after 2, 3, ... launches; grown on demand, the same everywhere."""

    def __init__(self) -> None:
        self._ps: list[launch_model.Values] = []
        self._spreads = launch_model.draw_spreads(np.random.default_rng(_SEED), PATHS)
        self._mean = np.zeros(PATHS)
        self._squares = np.zeros(PATHS)
        self._count = 0

    def ps(self, launches: int) -> launch_model.Values:
        while self._count < launches:
            self._add_launch()
        return self._ps[launches - 2]

    def _add_launch(self) -> None:
        # Each launch has its own random stream, so that more launches change no earlier one.
        rng = np.random.default_rng((_SEED, self._count))
        drawn = self._spreads * rng.standard_normal(PATHS)
        self._count += 1
        step = drawn - self._mean
        self._mean += step / self._count
        self._squares += step * (drawn - self._mean)
        if self._count > 1:
            spreads = np.sqrt(self._squares / (self._count - 1))
            self._ps.append(launch_model.p_values(self._mean, spreads, self._count, coarse=True))


@cache
def _paths() -> _Paths:
    return _Paths()


def _path_ps(launches: int) -> launch_model.Values:
    return _paths().ps(launches)


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


def half_width(launch_sd: float, launches: int, *, alpha: float = 0.05) -> float:
    """Return the half-width of the plain t interval over launches, which is close enough for a plan."""
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


def chance_of_verdict(
    effect: float, summary: LaunchSummary, launches: int, *, margin: float, alpha: float = 0.05
) -> float:
    """Return the predicted probability of a verdict (faster, slower, same) after `launches` launches.

    The mean of the further launches is predicted from the effect and the spread so far. Interim
    analyses are ignored, so the number is slightly too optimistic.
    """
    further = launches - summary.launches
    sigma = math.hypot(launch_model.typical_spread(summary), math.sqrt(summary.pair_variance))
    width = launch_model.half_width(
        LaunchSummary(launches=max(launches, 2), spread=sigma, pair_variance=summary.pair_variance),
        alpha,
    )
    limit = math.log1p(margin) - width
    if further <= 0:
        return float(abs(effect) > width or abs(effect) <= limit)
    # Mean of all launches given the mean so far: theta is known up to sigma / sqrt(K).
    sd = sigma * math.sqrt(1.0 / summary.launches - 1.0 / launches)

    def below(value: float) -> float:
        return 0.5 * math.erfc((effect - value) / (sd * math.sqrt(2.0)))

    chance = below(-width) + 1.0 - below(width)
    if limit > 0.0:
        chance += below(limit) - below(-limit)
    return min(1.0, chance)
