"""Many comparisons at once: false discoveries under control, and one number for the suite.

Works on estimates that are already made. Knows nothing of pairs or looks, and does not say what
failed: whoever prints the mean lists beside it the workloads that `counts_in_mean` leaves out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torchyard.core.comparison import Estimate, Interval, Verdict
from torchyard.core.study import Budget
from torchyard.stats.between_runs import effect_of, interval_of
from torchyard.stats.launches import SD_FLOOR
from torchyard.stats.student import normal_quantile, two_sided_critical
from torchyard.stats.verdicts import verdict_of

__all__ = [
    "adjust_for_suite",
    "benjamini_hochberg",
    "counts_in_mean",
    "demote",
    "geometric_mean",
    "selected_intervals",
    "verdict_alone",
]


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: those below q hold false discoveries to a share of q (1995)."""
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
    """The estimates with adjusted p-values, and verdicts taken back that do not survive them.

    `family` is what they are all the comparisons of, as reasons name it.
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
    """What the estimate said before any correction took its claim back.

    An interval beyond 1 that has enough launches makes a claim; where the verdict is undecided
    all the same, a correction took it back, of this family of comparisons or of a smaller one.
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
    """Faster and slower become undecided when the adjusted p-value is above alpha.

    `same` stays: it rests on the interval, not on a test of no difference.
    """
    claims = estimate.verdict in {Verdict.FASTER, Verdict.SLOWER}
    if not claims or estimate.p_adjusted is None or estimate.p_adjusted <= alpha:
        return estimate
    reason = (
        f"{estimate.verdict} on its own (p = {estimate.p_value:.3g}), but not among all "
        f"comparisons of the {family} (adjusted p = {estimate.p_adjusted:.3g})"
    )
    return dataclasses.replace(
        estimate, verdict=Verdict.UNDECIDED, reasons=(*estimate.reasons, reason)
    )


def selected_intervals(
    chosen: Sequence[Estimate], out_of: int, *, alpha: float
) -> list[Interval | None]:
    """Intervals for estimates that were selected because they are extreme.

    The expected share of selected intervals that miss the truth is at most alpha when each has the
    level 1 - alpha * R / m, R selected out of m (Benjamini & Yekutieli 2005). An estimate from a
    single launch keeps the interval that it has.
    """
    level = alpha * len(chosen) / max(out_of, len(chosen), 1)
    found = []
    for estimate in chosen:
        effect = effect_of(estimate)
        found.append(
            estimate.interval if effect is None else interval_of(effect, confidence=1.0 - level)
        )
    return found


def counts_in_mean(estimate: Estimate) -> bool:
    """Whether the estimate has the standard error over launches that the mean needs."""
    return estimate.launch_sd is not None and estimate.launches > 1


def geometric_mean(
    estimates: Sequence[Estimate], *, confidence: float = 0.95
) -> tuple[float, Interval] | None:
    """Geometric mean of the speedups with its interval, for these workloads and no others.

    Variances add up over comparisons; degrees of freedom by Welch and Satterthwaite. A comparison's
    standard error is the half-width of its interval over Student's quantile, so that the interim
    analyses that widened its interval and the lower bound that pairs set widen this one, too. When
    every comparison has one launch only, the mean speaks for those processes. None when nothing can
    be averaged.
    """
    parts = [_part(one) for one in estimates if counts_in_mean(one)]
    if not parts:
        parts = [_process_part(one) for one in estimates if one.interval is not None]
    if not parts:
        return None
    centre = math.fsum(log for log, _, _ in parts) / len(parts)
    variances = [variance for _, variance, _ in parts]
    total = math.fsum(variances)
    df = total**2 / math.fsum(variance**2 / df for _, variance, df in parts)
    width = two_sided_critical(1.0 - confidence, df) * math.sqrt(total) / len(parts)
    interval = Interval(
        low=math.exp(centre - width), high=math.exp(centre + width), confidence=confidence
    )
    return math.exp(centre), interval


def _part(estimate: Estimate) -> tuple[float, float, float]:
    found = effect_of(estimate)
    if found is not None:
        return found.log, found.error**2, found.degrees
    spread = max(estimate.launch_sd or 0.0, SD_FLOOR)
    return math.log(estimate.speedup), spread**2 / estimate.launches, estimate.launches - 1.0


def _process_part(estimate: Estimate) -> tuple[float, float, float]:
    interval = estimate.interval
    if interval is None:
        raise ValueError("no interval to take a standard error from")
    quantile = normal_quantile(0.5 + interval.confidence / 2.0)
    error = math.log(interval.high / interval.low) / (2.0 * quantile)
    return math.log(estimate.speedup), max(error, SD_FLOOR) ** 2, 1e9
