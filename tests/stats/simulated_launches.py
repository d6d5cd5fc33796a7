"""Validate the statistics: simulated measurements, and decision rules of other tools.

The noise model has two levels. Inside a launch, blocks follow one another and share a stream of
noise (correlated, drifting, heavy-tailed); a pair is two neighboring blocks in random order.
Between launches, each fresh process draws a memory layout and keeps it. The rules of other tools
take raw times of both variants and answer whether they call them different; they are written from
descriptions and are not used for verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchyard.stats.distributions import two_sided_p

Values = NDArray[np.float64]
Order = Literal["alternating", "blocks"]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """One noise model. All standard deviations are of the logarithm of the time."""

    name: str
    block_sd: float = 0.02
    correlation: float = 0.0
    """Lag-1 correlation of neighboring blocks."""
    drift: float = 0.0
    """Standard deviation of the linear drift over one launch."""
    tail_df: float | None = None
    """Student degrees of freedom instead of normal noise."""
    spike_share: float = 0.0
    spike_size: float = 0.0
    """Share of preempted blocks, and the mean of their slowdown."""
    launch_sd: float = 0.015
    """Standard deviation of the difference between two fresh processes of identical code."""
    modes_apart: float = 0.0
    """Distance between two modes, one of which each process takes with equal probability."""
    launch_correlation: float = 0.0
    """Lag-1 correlation of launch effects, which violates the assumption of independence."""


IID: Final = Noise(name="independent")
AR1: Final = Noise(name="AR(1), 0.7", correlation=0.7)
DRIFT: Final = Noise(name="drift", drift=0.3)
HEAVY_TAIL: Final = Noise(name="heavy tail (t, 2 df)", tail_df=2.0)
SPIKES: Final = Noise(name="preemption spikes", spike_share=0.2, spike_size=0.5)
BIMODAL: Final = Noise(name="two-mode launches", launch_sd=0.004, modes_apart=0.12)
NOISES: Final[tuple[Noise, ...]] = (IID, AR1, DRIFT, HEAVY_TAIL, SPIKES, BIMODAL)
"""Noise models for which the stated error rates must hold."""
LINKED_LAUNCHES: Final = Noise(name="launches correlated, 0.5", launch_correlation=0.5)
"""A noise model for which they do not hold: dependent launches."""


def draw_launches(
    noise: Noise, rng: np.random.Generator, *, launches: int, pairs: int, effect: float = 0.0
) -> Values:
    """Draw paired log speedups, one row per launch; `effect` is the true log speedup."""
    stream = _stream(noise, rng, launches, 2 * pairs).reshape(launches, pairs, 2)
    baseline_first = rng.random((launches, pairs)) < 0.5
    difference = stream[:, :, 0] - stream[:, :, 1]
    layout = _layouts(noise, rng, launches)[:, np.newaxis]
    paired: Values = np.where(baseline_first, difference, -difference) + layout + effect
    return paired


def draw_times(
    noise: Noise,
    rng: np.random.Generator,
    *,
    samples: int,
    effect: float = 0.0,
    order: Order = "alternating",
    own_streams: bool = False,
    typical_s: float = 0.01,
) -> tuple[Values, Values]:
    """Draw raw unpaired times of baseline and candidate from one launch.

    `alternating` is strict A, B, A, B; `blocks` is all of A, then all of B. With `own_streams`, each
    process has independent noise instead of the shared noise of the machine.
    """
    if own_streams:
        first, second = _stream(noise, rng, 2, samples)
    else:
        both = _stream(noise, rng, 1, 2 * samples)[0]
        halves = (both[0::2], both[1::2]) if order == "alternating" else np.split(both, 2)
        first, second = halves
    layout = _layouts(noise, rng, 1)[0]
    return typical_s * np.exp(first + layout + effect), typical_s * np.exp(second)


def _stream(noise: Noise, rng: np.random.Generator, rows: int, length: int) -> Values:
    """Draw the deviation of the log time from its typical value, block by block."""
    if noise.tail_df is not None:
        shocks = rng.standard_t(noise.tail_df, (rows, length)) * noise.block_sd
    else:
        shocks = rng.normal(0.0, noise.block_sd, (rows, length))
    stream = shocks
    if noise.correlation:
        scale = np.sqrt(1.0 - noise.correlation**2)
        stream = np.empty_like(shocks)
        stream[:, 0] = shocks[:, 0]
        for place in range(1, length):
            stream[:, place] = noise.correlation * stream[:, place - 1] + scale * shocks[:, place]
    if noise.drift:
        slope = rng.normal(0.0, noise.drift, (rows, 1))
        stream = stream + slope * np.linspace(-0.5, 0.5, length)
    if noise.spike_share:
        hit = rng.random((rows, length)) < noise.spike_share
        stream = stream + hit * rng.exponential(noise.spike_size, (rows, length))
    return stream


def _layouts(noise: Noise, rng: np.random.Generator, launches: int) -> Values:
    """Draw the constant difference between the two processes of each launch."""
    layout = rng.normal(0.0, noise.launch_sd, launches)
    if noise.launch_correlation:
        scale = np.sqrt(1.0 - noise.launch_correlation**2)
        for place in range(1, launches):
            layout[place] = noise.launch_correlation * layout[place - 1] + scale * layout[place]
    if noise.modes_apart:
        modes = rng.integers(0, 2, (2, launches))
        layout = layout + noise.modes_apart * (modes[0] - modes[1])
    return layout


Times = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RuleAnswer:
    """Answer of a decision rule for two sets of times."""

    different: bool
    speedup: float
    """Baseline time over candidate time, as the rule computes it."""
    p_value: float | None = None


Rule = Callable[[ArrayLike, ArrayLike], RuleAnswer]


def dynamo_rule(baseline: ArrayLike, candidate: ArrayLike, *, p_limit: float = 0.1) -> RuleAnswer:
    """Apply the rule of PyTorch's dynamo harness: unpaired Student t test on alternating calls.

    Speedup is the ratio of medians, significant below p = 0.1.
    """
    first, second = _times(baseline), _times(candidate)
    df = first.size + second.size - 2
    pooled = (np.sum((first - first.mean()) ** 2) + np.sum((second - second.mean()) ** 2)) / df
    error = math.sqrt(float(pooled) * (1 / first.size + 1 / second.size))
    p_value = _p_of(float(first.mean() - second.mean()), error, df)
    return RuleAnswer(
        different=p_value < p_limit, speedup=_ratio_of_medians(first, second), p_value=p_value
    )


def welch_rule(baseline: ArrayLike, candidate: ArrayLike, *, p_limit: float = 0.05) -> RuleAnswer:
    """Apply Welch's t test to raw times, as scripts around hyperfine do."""
    first, second = _times(baseline), _times(candidate)
    parts = [float(np.var(side, ddof=1)) / side.size for side in (first, second)]
    total = sum(parts)
    bottom = parts[0] ** 2 / (first.size - 1) + parts[1] ** 2 / (second.size - 1)
    df = total**2 / bottom if bottom > 0.0 else float(first.size + second.size - 2)
    p_value = _p_of(float(first.mean() - second.mean()), math.sqrt(total), df)
    return RuleAnswer(
        different=p_value < p_limit,
        speedup=float(first.mean() / second.mean()),
        p_value=p_value,
    )


def mann_whitney_rule(
    baseline: ArrayLike, candidate: ArrayLike, *, p_limit: float = 0.05
) -> RuleAnswer:
    """Mann-Whitney U with the normal approximation, ties and continuity corrected."""
    first, second = _times(baseline), _times(candidate)
    pooled = np.concatenate([first, second])
    _, places, counts = np.unique(pooled, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2.0)[places]
    size = pooled.size
    u = float(np.sum(ranks[: first.size])) - first.size * (first.size + 1) / 2.0
    ties = float(np.sum(counts**3 - counts)) / (size * (size - 1))
    spread = math.sqrt(first.size * second.size / 12.0 * (size + 1 - ties))
    distance = max(0.0, abs(u - first.size * second.size / 2.0) - 0.5)
    p_value = 1.0 if spread == 0.0 else math.erfc(distance / spread / math.sqrt(2.0))
    return RuleAnswer(
        different=p_value < p_limit, speedup=_ratio_of_medians(first, second), p_value=p_value
    )


def bootstrap_rule(
    baseline: ArrayLike,
    candidate: ArrayLike,
    *,
    alpha: float = 0.05,
    resamples: int = 500,
    seed: int = 1,
) -> RuleAnswer:
    """Apply a percentile bootstrap of the ratio of medians, assuming independent times."""
    rng = np.random.default_rng(seed)
    first, second = _times(baseline), _times(candidate)
    tops = np.median(rng.choice(first, (resamples, first.size)), axis=1)
    bottoms = np.median(rng.choice(second, (resamples, second.size)), axis=1)
    low, high = np.quantile(tops / bottoms, [alpha / 2.0, 1.0 - alpha / 2.0])
    return RuleAnswer(different=not low <= 1.0 <= high, speedup=_ratio_of_medians(first, second))


def threshold_rule(
    baseline: ArrayLike, candidate: ArrayLike, *, threshold: float = 0.02
) -> RuleAnswer:
    """Compare medians with a fixed threshold, as many CI gates do."""
    ratio = _ratio_of_medians(_times(baseline), _times(candidate))
    return RuleAnswer(different=abs(ratio - 1.0) > threshold, speedup=ratio)


def naive_peeking(
    effects: Sequence[float], *, alpha: float = 0.05, min_launches: int = 3
) -> RuleAnswer:
    """Repeat the plain t test after every launch until it is significant."""
    values = np.asarray(effects, dtype=np.float64)
    p_value = 1.0
    for count in range(min_launches, values.size + 1):
        seen = values[:count]
        error = float(np.std(seen, ddof=1)) / math.sqrt(count)
        p_value = _p_of(float(np.mean(seen)), error, count - 1)
        if p_value < alpha:
            speedup = math.exp(float(np.mean(values[:count])))
            return RuleAnswer(different=True, speedup=speedup, p_value=p_value)
    return RuleAnswer(different=False, speedup=math.exp(float(np.mean(values))), p_value=p_value)


RULES: Final[dict[str, Rule]] = {
    "dynamo: Student t, p < 0.1": dynamo_rule,
    "Welch t, p < 0.05": welch_rule,
    "Mann-Whitney, p < 0.05": mann_whitney_rule,
    "bootstrap of medians, 95 %": bootstrap_rule,
    "medians differ by 2 %": threshold_rule,
}


def _times(values: ArrayLike) -> Times:
    times = np.asarray(values, dtype=np.float64)
    if times.ndim != 1 or times.size < 2 or not np.all(times > 0.0):
        raise ValueError("each variant needs at least two positive times")
    return times


def _ratio_of_medians(first: Times, second: Times) -> float:
    return float(np.median(first) / np.median(second))


def _p_of(difference: float, error: float, df: float) -> float:
    if error > 0.0:
        return two_sided_p(difference / error, df)
    return 1.0 if difference == 0.0 else 0.0
