"""One launch: an interval and a test that hold for its processes only.

The order inside each pair is random, so under no difference the sign of a log speedup is a fair
coin, whatever the noise: interval and test are distribution-free. They say nothing of what other
launches would show. Knows nothing of budgets or verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

__all__ = ["median_interval", "sign_test_p", "two_counts_p"]


def median_interval(pairs: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Order statistics that hold the median between them with at least 1 - alpha.

    None when even smallest to largest is not enough: below 6 pairs at 95 %.
    """
    ordered = sorted(pairs)
    depth = 0
    while 2 * (depth + 1) <= len(ordered) and 2.0 * _at_most(depth, len(ordered)) <= alpha:
        depth += 1
    if depth == 0:
        return None
    return ordered[depth - 1], ordered[-depth]


def sign_test_p(pairs: Sequence[float]) -> float:
    """Two-sided sign test of a zero median; pairs without any difference count half and half."""
    above = sum(value > 0 for value in pairs)
    below = sum(value < 0 for value in pairs)
    fewer = min(above, below) + (len(pairs) - above - below) // 2
    return min(1.0, 2.0 * _at_most(fewer, len(pairs)))


def two_counts_p(one: int, other: int) -> float:
    """Two-sided exact p-value of "both counts come from one fair coin"."""
    return min(1.0, 2.0 * _at_most(min(one, other), one + other))


def _at_most(successes: int, coins: int) -> float:
    """P(Binomial(coins, 1/2) <= successes), exact before it is rounded once."""
    total = term = 1
    for index in range(successes):
        term = term * (coins - index) // (index + 1)
        total += term
    return float(Fraction(total, 1 << coins))
