"""Compare the speedups of two runs against the same baseline, with a confidence interval.

Within a run the speedup is paired, so the speed of the machine on that day cancels. Two log speedups
are compared by Welch's test over launches, with two additions. A run with interim analyses has an
interval wider than Student's; its standard error is increased accordingly. And the same code can have
a different speedup in another session (other physical memory, other temperature), which launches
within two sessions cannot show; so a between-session standard deviation is added: an assumed one, or
that of several sessions of one side if it is larger.

Works on effects on the log scale; independent of runs, workloads and machines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torchyard.core.comparison import Estimate, Interval, Verdict
from torchyard.stats.distributions import student_cdf, two_sided_critical, two_sided_p
from torchyard.stats.estimate import verdict_of
from torchyard.stats.launches import SD_FLOOR

SESSION_SD: Final = 0.005
"""Assumed between-session standard deviation of the log speedup of the same code;
docs/explanation/statistics.md states what it is based on."""

_INFINITE_DF: Final = 1e9
"""Degrees of freedom of a standard deviation that is assumed, not estimated."""
_WIDEST: Final = 20.0
"""Log intervals wider than this (a factor of 10^8 each way) are omitted."""
_FEWEST: Final = 2


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A log ratio with its standard error and the degrees of freedom of that error."""

    log: float
    error: float
    degrees: float


def effect_of(estimate: Estimate) -> Effect | None:
    """Return the log speedup of one run; None if its interval is not over launches.

    The error is the half-width of the interval divided by Student's quantile for its degrees of
    freedom: the standard error over launches, and more if interim analyses widened the interval.
    """
    interval = estimate.interval
    if interval is None or estimate.scope != "launches" or estimate.launches < _FEWEST:
        return None
    if not 0.0 < interval.low <= interval.high < math.inf:
        return None
    degrees = estimate.launches - 1.0 if estimate.degrees is None else estimate.degrees
    quantile = two_sided_critical(1.0 - interval.confidence, degrees)
    error = math.log(interval.high / interval.low) / (2.0 * quantile)
    return Effect(log=math.log(estimate.speedup), error=max(error, SD_FLOOR), degrees=degrees)


def difference(
    one: Sequence[Effect], other: Sequence[Effect], *, session_sd: float = SESSION_SD
) -> Effect:
    """Return the log ratio of the speedup of `other` to that of `one`, each from its sessions."""
    if not one or not other:
        raise ValueError("both sides need at least one session")
    between, degrees = _between_sessions((one, other), session_sd)
    parts = [(between**2 / len(side), degrees) for side in (one, other)]
    for side in (one, other):
        parts += [((effect.error / len(side)) ** 2, effect.degrees) for effect in side]
    return _joined(_mean(other) - _mean(one), parts)


def mean_effect(effects: Sequence[Effect], *, session_sd: float = 0.0) -> Effect:
    """Return the mean over workloads; the between-session error is shared, so the mean does not reduce it.

    `session_sd` is the part of every effect's error that comes from sessions of both sides.
    """
    if not effects:
        raise ValueError("nothing to average")
    shared = session_sd**2
    own = [
        (max(0.0, effect.error**2 - shared) / len(effects) ** 2, effect.degrees)
        for effect in effects
    ]
    return _joined(_mean(effects), [*own, (shared, _INFINITE_DF)])


def interval_of(effect: Effect, confidence: float) -> Interval | None:
    """Return the interval of the ratio; None if it is too wide to be useful."""
    width = two_sided_critical(1.0 - confidence, effect.degrees) * effect.error
    if not width <= _WIDEST:
        return None
    return Interval(
        low=math.exp(effect.log - width), high=math.exp(effect.log + width), confidence=confidence
    )


def p_of(effect: Effect) -> float:
    """Return the two-sided p-value of no difference."""
    return two_sided_p(effect.log / effect.error, effect.degrees)


def beyond_p(effect: Effect, limit: float) -> float:
    """Return the one-sided p-value of "the log ratio is at most `limit`"."""
    return student_cdf((limit - effect.log) / effect.error, effect.degrees)


def ratio_verdict(effect: Effect, *, confidence: float, margin: float) -> Verdict:
    """Return the verdict of the interval of the ratio."""
    width = two_sided_critical(1.0 - confidence, effect.degrees) * effect.error
    return verdict_of(effect.log - width, effect.log + width, margin)


def _between_sessions(sides: Sequence[Sequence[Effect]], allowance: float) -> tuple[float, float]:
    """Return the between-session standard deviation and its degrees of freedom.

    The variance between sessions of one side minus what their launches explain (the method of moments
    of DerSimonian & Laird 1986), but at least the allowance, because with few sessions the estimate
    is often zero by chance.
    """
    squares = degrees = explained = 0.0
    for side in sides:
        if len(side) > 1:
            mean = _mean(side)
            squares += math.fsum((effect.log - mean) ** 2 for effect in side)
            degrees += len(side) - 1.0
            explained += (len(side) - 1.0) * math.fsum(e.error**2 for e in side) / len(side)
    observed = math.sqrt(max(0.0, squares - explained) / degrees) if degrees else 0.0
    return (observed, degrees) if observed > allowance else (allowance, _INFINITE_DF)


def _mean(effects: Sequence[Effect]) -> float:
    return math.fsum(effect.log for effect in effects) / len(effects)


def _joined(log: float, parts: Sequence[tuple[float, float]]) -> Effect:
    """Add variances; degrees of freedom by Welch and Satterthwaite."""
    total = math.fsum(variance for variance, _ in parts)
    if total <= 0.0:
        return Effect(log=log, error=SD_FLOOR, degrees=_INFINITE_DF)
    bottom = math.fsum(variance**2 / degrees for variance, degrees in parts)
    return Effect(log=log, error=math.sqrt(total), degrees=total**2 / bottom)
