"""Rules by which other tools find changes in a history, to measure them on the same series.

Written from descriptions of the rules. Each takes values in order of time and gives the places at
which it sees a new level. Not used for reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

__all__ = ["RIVALS", "asv_steps", "threshold_alarms"]

Values = NDArray[np.float64]
_MOST_JUMPS: Final = 30


def asv_steps(values: Values, *, smallest: float = 0.0) -> list[int]:
    """asv: levels that minimise absolute deviations plus a price per jump (an L1 Potts fit).

    The price is chosen by an information criterion, the log of the deviations plus 4 ln(n) / n per
    jump, after neighbours' likeness was taken out of them by a first-order autoregression. Here the
    best fit for each number of jumps is found exactly, and the criterion picks the number. Levels
    have two values at least. `smallest` leaves out jumps below a fraction, as asv's threshold does.
    """
    count = values.size
    costs = _deviations(values)
    best_score, best = math.inf, [0, count]
    for ends in _fits(costs, min(_MOST_JUMPS, count // 2 - 1)):
        levels = [float(np.median(values[a:b])) for a, b in pairwise(ends)]
        left = values - np.repeat(levels, np.diff(ends))
        likeness = float(left[1:] @ left[:-1]) / max(float(left @ left), 1e-300)
        rest = abs(left[0]) + float(np.abs(left[1:] - likeness * left[:-1]).sum())
        score = math.log(max(rest, 1e-300)) + 4.0 * (len(ends) - 2) * math.log(count) / count
        if score < best_score:
            best_score, best = score, ends
    levels = [float(np.median(values[a:b])) for a, b in pairwise(best)]
    return [
        place
        for place, before, after in zip(best[1:-1], levels[:-1], levels[1:], strict=True)
        if abs(after / before - 1.0) >= smallest
    ]


def _deviations(values: Values) -> Values:
    """Sum of distances from the median of values i to j, both included; infinite below two."""
    count = values.size
    costs = np.full((count, count), math.inf)
    for length in range(2, count + 1):
        ordered = np.sort(sliding_window_view(values, length), axis=1)
        half = length // 2
        sums = ordered[:, length - half :].sum(axis=1) - ordered[:, :half].sum(axis=1)
        starts = np.arange(count - length + 1)
        costs[starts, starts + length - 1] = sums
    return costs


def _fits(costs: Values, most_jumps: int) -> list[list[int]]:
    """Ends of levels of the best fit with 0, 1, ... jumps."""
    count = costs.shape[0]
    reached = [costs[0]]
    backs: list[NDArray[np.intp]] = []
    for _ in range(most_jumps):
        # Rows: first value of the last level; columns: its last value.
        through = reached[-1][:-1, np.newaxis] + costs[1:]
        backs.append(np.argmin(through, axis=0) + 1)
        reached.append(np.min(through, axis=0))
    fits = []
    for jumps, total in enumerate(reached):
        if not math.isfinite(total[-1]):
            break
        ends = [count]
        for back in reversed(backs[:jumps]):
            ends.append(int(back[ends[-1] - 1]))
        fits.append([0, *reversed(ends)])
    return fits


def threshold_alarms(values: Values, *, last: int = 10, limit: float = 0.05) -> list[int]:
    """A value that is further than the limit from the median of the last so many.

    Alarms in a row are one, at the first of them.
    """
    alarms: list[int] = []
    alarmed = False
    for place in range(min(last, values.size // 2), values.size):
        usual = float(np.median(values[max(0, place - last) : place]))
        before, alarmed = alarmed, abs(values[place] / usual - 1.0) > limit
        if alarmed and not before:
            alarms.append(place)
    return alarms


RIVALS: Final[dict[str, Callable[[Values], list[int]]]] = {
    "asv, all steps": asv_steps,
    "asv, steps of 5 % or more": lambda values: asv_steps(values, smallest=0.05),
    "threshold of 5 %": threshold_alarms,
}
"""By the name used in tables."""
