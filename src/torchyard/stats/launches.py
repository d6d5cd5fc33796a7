"""From pairs to launches: one number per launch, and the spread at both levels.

A launch draws a memory layout and keeps it, so pairs of one launch share an error that no number
of pairs removes; the launch is the independent unit. Knows nothing of looks, budgets or verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.errors import Untrustworthy

__all__ = [
    "SD_FLOOR",
    "launch_effects",
    "launch_sd",
    "pair_sd",
    "standard_error",
    "t_statistics",
]

Effects = NDArray[np.float64]

SD_FLOOR: Final = 1e-6
"""Launches that agree better than one part in a million show the clock's steps, not the truth:
the spread is never taken to be smaller, so nothing is divided by zero."""
_MAD_TO_SD: Final = 1.4826


def launch_effects(launches: Sequence[Sequence[float]]) -> Effects:
    """The median log speedup of each launch that has a clean pair, in order."""
    effects = []
    for number, pairs in enumerate(launches):
        values = np.asarray(pairs, dtype=np.float64)
        _refuse_non_finite(values, number)
        if values.size:
            effects.append(_median(values))
    return np.asarray(effects, dtype=np.float64)


def launch_sd(effects: Effects) -> float | None:
    """Standard deviation between launches; None below two launches."""
    return float(np.std(effects, ddof=1)) if effects.size > 1 else None


def standard_error(effects: Effects) -> float:
    """Of the mean over launches; needs two launches or more."""
    spread = launch_sd(effects)
    if spread is None:
        raise ValueError(f"{effects.size} launches have no standard error")
    return max(spread, SD_FLOOR) / math.sqrt(effects.size)


def t_statistics(effects: Effects, counts: Sequence[int]) -> list[float]:
    """Mean in standard errors, over the first so many launches, for each of the counts."""
    sizes = np.arange(1, effects.size + 1)
    # Sums of squares around the overall mean lose no digits to a large common effect.
    around = float(np.mean(effects)) if effects.size else 0.0
    apart = effects - around
    sums = np.cumsum(apart)
    squares = np.maximum(np.cumsum(apart**2) - sums**2 / sizes, 0.0)
    spreads = np.maximum(np.sqrt(squares / np.maximum(sizes - 1, 1)), SD_FLOOR)
    statistics = (around + sums / sizes) / (spreads / np.sqrt(sizes))
    if min(counts, default=2) < 2:  # noqa: PLR2004
        raise ValueError(f"a t statistic needs two launches or more, not {min(counts)}")
    return [float(statistics[count - 1]) for count in counts]


def pair_sd(launches: Sequence[Sequence[float]]) -> float | None:
    """Robust standard deviation of pairs around their launch's median, pooled over launches.

    Deviations from a launch's own median are too small; sqrt(n / (n - 1)) mends most of that (15 %
    are missing at 6 pairs, 3 % at 30), which is good enough for planning.
    None when no launch has two pairs.
    """
    deviations = []
    for pairs in launches:
        values = np.asarray(pairs, dtype=np.float64)
        if values.size > 1:
            widened = math.sqrt(values.size / (values.size - 1))
            deviations.append(np.abs(values - _median(values)) * widened)
    if not deviations:
        return None
    return _MAD_TO_SD * _median(np.concatenate(deviations))


def _median(values: Effects) -> float:
    """Like numpy's, several times faster on the few values of a launch."""
    ordered = np.sort(values)
    return float(ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2.0


def _refuse_non_finite(values: Effects, number: int) -> None:
    if not math.isfinite(float(values.sum())):
        place = int(np.argmin(np.isfinite(values)))
        raise Untrustworthy(
            f"launch {number}, pair {place}: the log speedup is {values[place]}",
            why="a block of this pair lasted no time at all, or its duration is not a number",
            hint="use longer blocks (block-s), and check the clock of the worker",
        )
