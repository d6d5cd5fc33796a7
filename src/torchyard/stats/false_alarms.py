"""How often identical code was called different: a rate with its interval, and whether p-values are even.

For comparisons of a thing with itself, where every difference that is found is a false alarm.
Knows counts and p-values; nothing of speedups, verdicts or machines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from torchyard.core.comparison import Interval
from torchyard.stats.student import normal_quantile

__all__ = ["P_BINS", "chance_of_at_least", "excess_of_small", "p_value_bins", "wilson_interval"]

P_BINS: Final = 10


def wilson_interval(count: int, total: int, *, confidence: float = 0.95) -> Interval:
    """Of a share, by its score (Wilson 1927): stays inside 0 and 1, and works for 0 of n."""
    _check(count, total)
    if total == 0:
        return Interval(low=0.0, high=1.0, confidence=confidence)
    quantile = normal_quantile(0.5 + confidence / 2.0)
    share, square = count / total, quantile * quantile
    centre = share + square / (2.0 * total)
    half = quantile * math.sqrt(share * (1.0 - share) / total + square / (4.0 * total * total))
    scale = 1.0 + square / total
    low = 0.0 if count == 0 else max(0.0, (centre - half) / scale)
    high = 1.0 if count == total else min(1.0, (centre + half) / scale)
    return Interval(low=low, high=high, confidence=confidence)


def chance_of_at_least(count: int, total: int, rate: float) -> float:
    """P(K >= count) for a binomial K: how surprising so many alarms are at that rate."""
    _check(count, total)
    if not 0.0 < rate < 1.0:
        raise ValueError(f"a rate lies between 0 and 1, not {rate!r}")
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
    """The largest excess of small p-values over even ones, and the chance of such an excess.

    One-sided, because valid p-values may be larger than even ones: those of comparisons that
    stopped early without a difference are upper bounds. The chance is exact (Birnbaum & Tingey
    1951).
    """
    count = len(p_values)
    if not count:
        return 0.0, 1.0
    excess = max((place + 1) / count - value for place, value in enumerate(sorted(p_values)))
    excess = max(0.0, excess)
    return excess, _chance_of_excess(excess, count)


def p_value_bins(p_values: Sequence[float], bins: int = P_BINS) -> tuple[int, ...]:
    """How many p-values lie in each of so many equal parts of 0 to 1; 1 is in the last."""
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
            # The last term is 0 unless its power is, and then it is of no weight either.
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
        raise ValueError(f"{count} of {total} is no share")
