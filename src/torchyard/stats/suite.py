"""Many comparisons at once: false discovery control, geometric means, and the rate of false alarms.

Works on finished estimates. The caller that prints a mean lists the workloads that `counts_in_mean`
excludes. False alarms are counted in comparisons of a variant with itself, where every reported
difference is false.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from torchyard.core.comparison import Estimate, Interval, Verdict
from torchyard.core.study import Budget
from torchyard.stats.between_runs import effect_of, interval_of
from torchyard.stats.distributions import normal_quantile, two_sided_critical
from torchyard.stats.estimate import verdict_of
from torchyard.stats.launches import SD_FLOOR


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values that control the false discovery rate (Benjamini & Hochberg 1995)."""
    count = len(p_values)
    adjusted = [1.0] * count
    smallest = 1.0
    falling = sorted(range(count), key=lambda index: p_values[index], reverse=True)
    for place, index in enumerate(falling):
        smallest = min(smallest, p_values[index] * (count / (count - place)))
        adjusted[index] = smallest
    return adjusted


def adjust_for_suite(
    estimates: Sequence[Estimate], alpha: float, *, family: str = "run"
) -> list[Estimate]:
    """Return the estimates with adjusted p-values; verdicts that are no longer significant are withdrawn.

    `family` names the set of comparisons in the reasons.
    """
    tested = [index for index, one in enumerate(estimates) if one.p_value is not None]
    adjusted = benjamini_hochberg(
        [one.p_value for one in estimates if one.p_value is not None],
    )
    result = list(estimates)
    for index, value in zip(tested, adjusted, strict=True):
        result[index] = demote(
            dataclasses.replace(estimates[index], p_adjusted=value), alpha, family=family
        )
    return result


def verdict_alone(estimate: Estimate, budget: Budget) -> Verdict:
    """Return the verdict of an estimate before correction for multiple comparisons.

    An interval that excludes 1, with enough launches, makes a claim; if the verdict is undecided
    nevertheless, a correction withdrew it, in this family of comparisons or a smaller one.
    """
    interval = estimate.interval
    if (
        estimate.verdict is not Verdict.UNDECIDED
        or estimate.withheld
        or interval is None
        or estimate.p_value is None
        or estimate.p_adjusted is None
        or estimate.launches < _launches_for_a_claim(budget)
        or interval.low <= 0.0
    ):
        return estimate.verdict
    return verdict_of(math.log(interval.low), math.log(interval.high), budget.margin)


def _launches_for_a_claim(budget: Budget) -> int:
    if budget.max_launches == 1:
        return 1
    return max(2, min(budget.min_launches, budget.max_launches))


def demote(estimate: Estimate, alpha: float, *, family: str = "run") -> Estimate:
    """Change faster and slower to undecided if the adjusted p-value is above alpha.

    `same` is kept: it is based on the interval, not on a test of no difference.
    """
    claims = estimate.verdict in {Verdict.FASTER, Verdict.SLOWER}
    if not claims or estimate.p_adjusted is None or estimate.p_adjusted <= alpha:
        return estimate
    reason = (
        f"{estimate.verdict} on its own (p = {estimate.p_value:.3g}), but not significant after "
        f"adjustment for all comparisons of the {family} (adjusted p = {estimate.p_adjusted:.3g})"
    )
    return dataclasses.replace(
        estimate, verdict=Verdict.UNDECIDED, reasons=(*estimate.reasons, reason)
    )


def selected_intervals(
    chosen: Sequence[Estimate], out_of: int, *, alpha: float
) -> list[Interval | None]:
    """Return intervals for estimates that were selected because they are extreme.

    The expected share of selected intervals that miss the truth is at most alpha when each has the
    level 1 - alpha * R / m, R selected out of m (Benjamini & Yekutieli 2005). An estimate from a
    single launch keeps its interval.
    """
    level = alpha * len(chosen) / max(out_of, len(chosen), 1)
    intervals = []
    for estimate in chosen:
        effect = effect_of(estimate)
        intervals.append(
            estimate.interval if effect is None else interval_of(effect, confidence=1.0 - level)
        )
    return intervals


def counts_in_mean(estimate: Estimate) -> bool:
    """Whether the estimate has a standard error over launches, which the mean needs."""
    return estimate.launch_sd is not None and estimate.launches > 1


def geometric_mean(
    estimates: Sequence[Estimate], *, confidence: float = 0.95
) -> tuple[float, Interval] | None:
    """Return the geometric mean of the speedups with its interval, for exactly these workloads.

    Variances add up over comparisons; degrees of freedom by Welch and Satterthwaite. A comparison's
    standard error is the half-width of its interval over Student's quantile, so that the interim
    analyses that widened its interval and the lower bound that pairs set widen this one, too. If
    every comparison has a single launch, the mean is valid for those processes. None if nothing can be
    averaged.
    """
    parts = [_part(one) for one in estimates if counts_in_mean(one)]
    if not parts:
        parts = [_process_part(one) for one in estimates if one.interval is not None]
    if not parts:
        return None
    center = math.fsum(log for log, _, _ in parts) / len(parts)
    variances = [variance for _, variance, _ in parts]
    total = math.fsum(variances)
    df = total**2 / math.fsum(variance**2 / df for _, variance, df in parts)
    width = two_sided_critical(1.0 - confidence, df) * math.sqrt(total) / len(parts)
    interval = Interval(
        low=math.exp(center - width), high=math.exp(center + width), confidence=confidence
    )
    return math.exp(center), interval


def _part(estimate: Estimate) -> tuple[float, float, float]:
    effect = effect_of(estimate)
    if effect is not None:
        return effect.log, effect.error**2, effect.degrees
    spread = max(estimate.launch_sd or 0.0, SD_FLOOR)
    return math.log(estimate.speedup), spread**2 / estimate.launches, estimate.launches - 1.0


def _process_part(estimate: Estimate) -> tuple[float, float, float]:
    interval = estimate.interval
    if interval is None:
        raise ValueError("no interval to take a standard error from")
    quantile = normal_quantile(0.5 + interval.confidence / 2.0)
    error = math.log(interval.high / interval.low) / (2.0 * quantile)
    return math.log(estimate.speedup), max(error, SD_FLOOR) ** 2, 1e9


P_BINS: Final = 10


def wilson_interval(count: int, total: int, *, confidence: float = 0.95) -> Interval:
    """Return the score interval of a proportion (Wilson 1927), which is valid for 0 of n, too."""
    _check(count, total)
    if total == 0:
        return Interval(low=0.0, high=1.0, confidence=confidence)
    quantile = normal_quantile(0.5 + confidence / 2.0)
    share, square = count / total, quantile * quantile
    center = share + square / (2.0 * total)
    half = quantile * math.sqrt(share * (1.0 - share) / total + square / (4.0 * total * total))
    scale = 1.0 + square / total
    low = 0.0 if count == 0 else max(0.0, (center - half) / scale)
    high = 1.0 if count == total else min(1.0, (center + half) / scale)
    return Interval(low=low, high=high, confidence=confidence)


def chance_of_at_least(count: int, total: int, rate: float) -> float:
    """Return P(K >= count) for a binomial K: the probability of at least `count` alarms at that rate."""
    _check(count, total)
    if not 0.0 < rate < 1.0:
        raise ValueError(f"rate must be between 0 and 1, not {rate!r}")
    if count == 0:
        return 1.0
    logs = (
        math.lgamma(total + 1)
        - math.lgamma(k + 1)
        - math.lgamma(total - k + 1)
        + k * math.log(rate)
        + (total - k) * math.log1p(-rate)
        for k in range(count, total + 1)
    )
    return min(1.0, math.fsum(math.exp(log) for log in logs))


def excess_of_small(p_values: Sequence[float]) -> tuple[float, float]:
    """Return the largest excess of small p-values over uniform ones, and its p-value.

    One-sided, because valid p-values may be larger than uniform ones: those of comparisons that
    stopped early without a difference are upper bounds. Exact (Birnbaum & Tingey 1951).
    """
    count = len(p_values)
    if not count:
        return 0.0, 1.0
    excess = max((place + 1) / count - value for place, value in enumerate(sorted(p_values)))
    excess = max(0.0, excess)
    return excess, _chance_of_excess(excess, count)


def p_value_bins(p_values: Sequence[float], bins: int = P_BINS) -> tuple[int, ...]:
    """Return the histogram of p-values over equal bins from 0 to 1."""
    counts = [0] * bins
    for value in p_values:
        counts[min(bins - 1, int(value * bins))] += 1
    return tuple(counts)


def _chance_of_excess(excess: float, count: int) -> float:
    if excess <= 0.0:
        return 1.0
    if excess >= 1.0:
        return 0.0
    terms = []
    for j in range(int(count * (1.0 - excess)) + 1):
        above, below = 1.0 - excess - j / count, excess + j / count
        power = count - j
        if above <= 0.0:
            # The last term is 0 or negligible.
            continue
        log = (
            math.lgamma(count + 1)
            - math.lgamma(j + 1)
            - math.lgamma(count - j + 1)
            + power * math.log(above)
            + (j - 1) * math.log(below)
        )
        terms.append(math.exp(log))
    return min(1.0, excess * math.fsum(terms))


def _check(count: int, total: int) -> None:
    if not 0 <= count <= total:
        raise ValueError(f"{count} of {total} is not a proportion")
