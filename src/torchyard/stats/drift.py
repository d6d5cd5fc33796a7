"""Whether a machine's speed moves in one direction while it is measured.

Blocks of one process share its layout, so a line through blocks would take differences between
processes for drift. The line goes through one level per launch instead: the median of all slopes
between two launches (Theil 1950, Sen 1968), with an interval from Kendall's exact distribution,
which holds whatever the noise is, as long as launches are independent of each other. Knows nothing
of what drifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.core.audit import Drift
from torchyard.core.comparison import Interval

__all__ = ["find_drift"]

_FEWEST_LAUNCHES: Final = 3
_MOST_LAUNCHES: Final = 200
"""Of more launches every n-th is taken: the exact distribution has no use for so many."""


def find_drift(
    minutes: Sequence[float],
    levels: Sequence[float],
    *,
    block_minutes: Sequence[float],
    block_levels: Sequence[float],
    alpha: float = 0.05,
) -> Drift | None:
    """The slope of log times over launches, and how much of the blocks' variance goes with it.

    None with fewer than three launches, or when no time passed between them.
    """
    step = max(1, -(-len(minutes) // _MOST_LAUNCHES))
    times = np.asarray(minutes, dtype=np.float64)[::step]
    values = np.asarray(levels, dtype=np.float64)[::step]
    if times.size < _FEWEST_LAUNCHES:
        return None
    slopes = _slopes(times, values)
    if not slopes.size:
        return None
    slope = float(np.median(slopes))
    return Drift(
        per_minute=slope,
        interval=_interval(slopes, times.size, alpha),
        explains=_explained(
            slope, np.asarray(block_minutes, dtype=float), np.asarray(block_levels, dtype=float)
        ),
    )


def _slopes(times: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    first, second = np.triu_indices(times.size, k=1)
    apart = times[second] - times[first]
    kept = apart != 0.0
    slopes: NDArray[np.float64] = np.sort((values[second] - values[first])[kept] / apart[kept])
    return slopes


def _interval(slopes: NDArray[np.float64], launches: int, alpha: float) -> Interval | None:
    """The d-th smallest and d-th largest slope, with the largest d that keeps the confidence."""
    if slopes.size != launches * (launches - 1) // 2:
        return None  # launches at one time: the distribution below is of another number
    depth = _depth(launches, alpha)
    if depth == 0:
        return None
    return Interval(
        low=float(slopes[depth - 1]), high=float(slopes[-depth]), confidence=1.0 - alpha
    )


@lru_cache(maxsize=256)
def _depth(launches: int, alpha: float) -> int:
    """How many slopes may be cut at each end: P(fewer than that many inversions) <= alpha / 2."""
    chances = np.ones(1)
    for length in range(2, launches + 1):
        chances = np.convolve(chances, np.full(length, 1.0 / length))
    below = np.cumsum(chances)
    return int(np.searchsorted(below, alpha / 2.0, side="right"))


def _explained(slope: float, minutes: NDArray[np.float64], levels: NDArray[np.float64]) -> float:
    if levels.size < _FEWEST_LAUNCHES:
        return 0.0
    whole = float(np.var(levels))
    if whole <= 0.0:
        return 0.0
    return max(0.0, 1.0 - float(np.var(levels - slope * minutes)) / whole)
