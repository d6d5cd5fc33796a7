"""Student's t distribution, and distribution-free tests and intervals. Standard library only.

The tail of t is a regularized incomplete beta function, evaluated as a continued fraction (Lentz's
method): relative accuracy is 1e-9 or better up to a million degrees of freedom, also in tails of
1e-280, and about 1e-8 beyond, where rounding of the argument dominates.

The sign test and the interval of the median describe a single launch. The order inside each pair is
random, so without a difference both signs of a log speedup are equally likely, for any noise. They
are not valid for other launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Final

_NORMAL: Final = NormalDist()
_TINY: Final = 1e-300
_RELATIVE_STEP: Final = 1e-16
_MAX_TERMS: Final = 100_000
# Above this the normal approximation is more accurate than the rounding of the argument allows.
_NORMAL_ABOVE: Final = 1e10
# Below this lgamma is accurate; above it the difference of two large lgammas loses digits.
_SERIES_ABOVE: Final = 40.0
_CAUCHY: Final = 1.0
_TWO: Final = 2.0


def normal_quantile(probability: float) -> float:
    """Return the standard normal quantile."""
    return _NORMAL.inv_cdf(probability)


def student_cdf(value: float, df: float) -> float:
    """Return P(T <= value)."""
    tail = _upper_tail(abs(value), df)
    return tail if value < 0 else 1.0 - tail


def two_sided_p(value: float, df: float) -> float:
    """Return P(|T| >= |value|), the p-value of the two-sided t test."""
    return min(1.0, 2.0 * _upper_tail(abs(value), df))


def student_quantile(probability: float, df: float) -> float:
    """Return the t with P(T <= t) = probability."""
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability must be between 0 and 1, not {probability!r}")
    half = 0.5
    if probability < half:
        return -_upper_quantile(probability, df)
    return _upper_quantile(1.0 - probability, df)


def two_sided_critical(level: float, df: float) -> float:
    """Return the c with P(|T| > c) = level; infinite if the level is 0."""
    if level <= 0.0:
        return math.inf
    if level >= 1.0:
        return 0.0
    return _upper_quantile(level / 2.0, df)


def _check(df: float) -> None:
    if not df > 0:
        raise ValueError(f"degrees of freedom must be positive, not {df!r}")


def _upper_tail(value: float, df: float) -> float:
    """Return P(T > value) for value >= 0."""
    _check(df)
    if math.isnan(value):
        raise ValueError("the t statistic is not a number")
    if math.isinf(value):
        return 0.0
    if df > _NORMAL_ABOVE:
        return 0.5 * math.erfc(value / math.sqrt(2.0))
    ratio = value * value / df
    # The continued fraction converges fast on this side; the other side uses the symmetry of I.
    if value * value * 3.0 > df / (df + 2.0) * 2.0:
        return 0.5 * _beta_part(df / 2.0, 0.5, ratio, flipped=False)
    return 0.5 - 0.5 * _beta_part(df / 2.0, 0.5, ratio, flipped=True)


def _beta_part(a: float, b: float, ratio: float, *, flipped: bool) -> float:
    """Return I_x(a, b) at x = 1/(1+ratio), or 1 - I_x if flipped."""
    log_front = -a * math.log1p(ratio) + _log_inverse_beta_half(a)
    if ratio > 0.0:
        log_front += b * (math.log(ratio) - math.log1p(ratio))
    elif flipped:
        return 0.0
    front = math.exp(log_front)
    if flipped:
        return front * _continued_fraction(b, a, ratio / (1.0 + ratio)) / b
    return front * _continued_fraction(a, b, 1.0 / (1.0 + ratio)) / a


def _log_inverse_beta_half(a: float) -> float:
    """Return log(1 / B(a, 1/2)) = log(gamma(a + 1/2) / gamma(a)) - log(sqrt(pi))."""
    if a < _SERIES_ABOVE:
        gammas = math.lgamma(a + 0.5) - math.lgamma(a)
    else:
        inverse = 1.0 / a
        square = inverse * inverse
        gammas = 0.5 * math.log(a) - inverse * (
            1 / 8 - square * (1 / 192 - square * (1 / 640 - square * 17 / 14336))
        )
    return gammas - 0.5 * math.log(math.pi)


def _continued_fraction(a: float, b: float, x: float) -> float:
    c = 1.0
    d = 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    result = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        step = 1.0
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + term / c
            c = c if abs(c) > _TINY else _TINY
            step = c * d
            result *= step
        if abs(step - 1.0) < 4 * _RELATIVE_STEP:
            return result
    raise ArithmeticError(f"the incomplete beta function did not converge: {a=} {b=} {x=}")


@lru_cache(maxsize=4096)
def _upper_quantile(tail: float, df: float) -> float:
    """Return the t >= 0 with P(T > t) = tail <= 1/2, by bracketed Newton steps on logarithms."""
    _check(df)
    half = 0.5
    if tail >= half:
        return 0.0
    if df == _CAUCHY:
        return 1.0 / math.tan(math.pi * tail)
    if df == _TWO:
        return (1.0 - 2.0 * tail) / math.sqrt(2.0 * tail * (1.0 - tail))
    low, high = 0.0, 1.0
    while _upper_tail(high, df) > tail:
        low, high = high, high * 2.0
    point = 0.5 * (low + high)
    for _ in range(200):
        point_tail = _upper_tail(point, df)
        if point_tail > tail:
            low = point
        else:
            high = point
        step = (
            (math.log(point_tail) - math.log(tail)) * point_tail / _density(point, df)
            if point_tail
            else 0.0
        )
        next_point = point + step
        if not low < next_point < high:
            next_point = 0.5 * (low + high)
        if abs(next_point - point) <= 4 * _RELATIVE_STEP * next_point:
            return next_point
        point = next_point
    return point


def _density(value: float, df: float) -> float:
    if df > _NORMAL_ABOVE:
        return _NORMAL.pdf(value)
    log_density = _log_inverse_beta_half(df / 2.0) - 0.5 * math.log(df)
    return math.exp(log_density - (df + 1.0) / 2.0 * math.log1p(value * value / df))


def median_interval(pairs: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Return order statistics that enclose the median with confidence of at least 1 - alpha.

    None if even smallest to largest is not enough: below 6 pairs at 95 %.
    """
    ordered = sorted(pairs)
    depth = 0
    while 2 * (depth + 1) <= len(ordered) and 2.0 * _at_most(depth, len(ordered)) <= alpha:
        depth += 1
    if depth == 0:
        return None
    return ordered[depth - 1], ordered[-depth]


def sign_test_p(pairs: Sequence[float]) -> float:
    """Return the two-sided p-value of the sign test of a zero median; ties count half each way."""
    above = sum(value > 0 for value in pairs)
    below = sum(value < 0 for value in pairs)
    fewer = min(above, below) + (len(pairs) - above - below) // 2
    return min(1.0, 2.0 * _at_most(fewer, len(pairs)))


def two_counts_p(one: int, other: int) -> float:
    """Return the two-sided exact p-value of two counts under a fair coin."""
    return min(1.0, 2.0 * _at_most(min(one, other), one + other))


def _at_most(successes: int, coins: int) -> float:
    """Return P(Binomial(coins, 1/2) <= successes), computed exactly and rounded once."""
    total = term = 1
    for index in range(successes):
        term = term * (coins - index) // (index + 1)
        total += term
    return float(Fraction(total, 1 << coins))
