"""Rules that other tools use, to measure how often each one cries wolf. Not used for verdicts.

Each rule takes raw times of both sides and answers whether it calls them different. Written from
descriptions of the rules; knows nothing of pairs, launches or looks, except where a rule does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchyard.stats.launches import t_statistics
from torchyard.stats.student import two_sided_p

__all__ = [
    "RULES",
    "RivalAnswer",
    "Rule",
    "bootstrap_rule",
    "dynamo_rule",
    "mann_whitney_rule",
    "naive_peeking",
    "threshold_rule",
    "welch_rule",
]

Times = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RivalAnswer:
    """What a rule says of two sets of times."""

    different: bool
    speedup: float
    """Baseline time over candidate time, as the rule computes it."""
    p_value: float | None = None


Rule = Callable[[ArrayLike, ArrayLike], RivalAnswer]


def dynamo_rule(baseline: ArrayLike, candidate: ArrayLike, *, p_limit: float = 0.1) -> RivalAnswer:
    """PyTorch's dynamo harness: Student t on times of strictly alternating calls, unpaired.

    Speedup is the ratio of medians; it is printed as significant below p = 0.1.
    """
    first, second = _times(baseline), _times(candidate)
    df = first.size + second.size - 2
    pooled = (np.sum((first - first.mean()) ** 2) + np.sum((second - second.mean()) ** 2)) / df
    error = math.sqrt(float(pooled) * (1 / first.size + 1 / second.size))
    p_value = _p_of(float(first.mean() - second.mean()), error, df)
    return RivalAnswer(
        different=p_value < p_limit, speedup=_ratio_of_medians(first, second), p_value=p_value
    )


def welch_rule(baseline: ArrayLike, candidate: ArrayLike, *, p_limit: float = 0.05) -> RivalAnswer:
    """Welch's t test on raw times, as scripts around hyperfine do."""
    first, second = _times(baseline), _times(candidate)
    parts = [float(np.var(side, ddof=1)) / side.size for side in (first, second)]
    total = sum(parts)
    bottom = parts[0] ** 2 / (first.size - 1) + parts[1] ** 2 / (second.size - 1)
    df = total**2 / bottom if bottom > 0.0 else float(first.size + second.size - 2)
    p_value = _p_of(float(first.mean() - second.mean()), math.sqrt(total), df)
    return RivalAnswer(
        different=p_value < p_limit,
        speedup=float(first.mean() / second.mean()),
        p_value=p_value,
    )


def mann_whitney_rule(
    baseline: ArrayLike, candidate: ArrayLike, *, p_limit: float = 0.05
) -> RivalAnswer:
    """Mann-Whitney U with the normal approximation, ties and continuity corrected."""
    first, second = _times(baseline), _times(candidate)
    together = np.concatenate([first, second])
    _, places, counts = np.unique(together, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2.0)[places]
    size = together.size
    u = float(np.sum(ranks[: first.size])) - first.size * (first.size + 1) / 2.0
    ties = float(np.sum(counts**3 - counts)) / (size * (size - 1))
    spread = math.sqrt(first.size * second.size / 12.0 * (size + 1 - ties))
    distance = max(0.0, abs(u - first.size * second.size / 2.0) - 0.5)
    p_value = 1.0 if spread == 0.0 else math.erfc(distance / spread / math.sqrt(2.0))
    return RivalAnswer(
        different=p_value < p_limit, speedup=_ratio_of_medians(first, second), p_value=p_value
    )


def bootstrap_rule(
    baseline: ArrayLike,
    candidate: ArrayLike,
    *,
    alpha: float = 0.05,
    resamples: int = 500,
    seed: int = 1,
) -> RivalAnswer:
    """Percentile bootstrap of the ratio of medians, times taken to be independent."""
    rng = np.random.default_rng(seed)
    first, second = _times(baseline), _times(candidate)
    tops = np.median(rng.choice(first, (resamples, first.size)), axis=1)
    bottoms = np.median(rng.choice(second, (resamples, second.size)), axis=1)
    low, high = np.quantile(tops / bottoms, [alpha / 2.0, 1.0 - alpha / 2.0])
    return RivalAnswer(different=not low <= 1.0 <= high, speedup=_ratio_of_medians(first, second))


def threshold_rule(
    baseline: ArrayLike, candidate: ArrayLike, *, threshold: float = 0.02
) -> RivalAnswer:
    """Medians that differ by more than a fixed share, as many gates in CI do."""
    ratio = _ratio_of_medians(_times(baseline), _times(candidate))
    return RivalAnswer(different=abs(ratio - 1.0) > threshold, speedup=ratio)


def naive_peeking(
    effects: Sequence[float], *, alpha: float = 0.05, min_launches: int = 3
) -> RivalAnswer:
    """The plain t test over launches, tried after every launch until it says yes."""
    seen = np.asarray(effects, dtype=np.float64)
    p_value = 1.0
    counts = range(min_launches, seen.size + 1)
    for count, statistic in zip(counts, t_statistics(seen, counts), strict=True):
        p_value = two_sided_p(statistic, count - 1)
        if p_value < alpha:
            speedup = math.exp(float(np.mean(seen[:count])))
            return RivalAnswer(different=True, speedup=speedup, p_value=p_value)
    return RivalAnswer(different=False, speedup=math.exp(float(np.mean(seen))), p_value=p_value)


RULES: Final[dict[str, Rule]] = {
    "dynamo: Student t, p < 0.1": dynamo_rule,
    "Welch t, p < 0.05": welch_rule,
    "Mann-Whitney, p < 0.05": mann_whitney_rule,
    "bootstrap of medians, 95 %": bootstrap_rule,
    "medians differ by 2 %": threshold_rule,
}


def _times(values: ArrayLike) -> Times:
    times = np.asarray(values, dtype=np.float64)
    if times.ndim != 1 or times.size < 2 or not np.all(times > 0.0):  # noqa: PLR2004
        raise ValueError("a rule needs two positive times or more on each side")
    return times


def _ratio_of_medians(first: Times, second: Times) -> float:
    return float(np.median(first) / np.median(second))


def _p_of(difference: float, error: float, df: float) -> float:
    if error > 0.0:
        return two_sided_p(difference / error, df)
    return 1.0 if difference == 0.0 else 0.0
