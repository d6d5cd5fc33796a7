"""Estimate a difference of times, such as the contribution of one operator, from several launches.

Differences add up, ratios do not. They are relative to one fixed time, so that the prior of
`launch_model` on the spread between launches applies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np

from torchyard.stats.launch_model import LaunchSummary, half_width, p_values


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Mean over launches, confidence interval and p-value of no difference."""

    mean: float
    low: float
    high: float
    p_value: float


def estimate_difference(launches: Sequence[Sequence[float]], *, alpha: float = 0.05) -> Difference:
    """Estimate from the relative differences in the rounds of each launch.

    With a single launch, nothing is known about others: the interval is infinite.
    """
    effects = [fmean(rounds) for rounds in launches]
    mean, count = fmean(effects), len(effects)
    if count == 1:
        return Difference(mean=mean, low=-math.inf, high=math.inf, p_value=1.0)
    spread = math.sqrt(variance(effects))
    within = [variance(rounds) / len(rounds) for rounds in launches if len(rounds) > 1]
    summary = LaunchSummary(
        launches=count, spread=spread, pair_variance=fmean(within) if within else 0.0
    )
    width = half_width(summary, alpha)
    p_value = p_values(
        np.asarray([mean]), np.asarray([spread]), count, pair_variance=summary.pair_variance
    )
    return Difference(mean=mean, low=mean - width, high=mean + width, p_value=float(p_value[0]))
