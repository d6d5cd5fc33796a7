"""How contenders of a race stand, from the launches they ran in. Pure.

Dropping a contender wrongly costs a chance; calling one faster wrongly breaks a promise. So the rules
for leaving are plain intervals, and what is recommended rests on launches that had no part in the
choosing, with Holm's correction where several claims are made at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Final

from torchyard.core.comparison import Interval
from torchyard.stats.launches import SD_FLOOR
from torchyard.stats.student import two_sided_critical, two_sided_p

__all__ = ["Pooled", "holm", "pooled"]

LEAST_SD: Final = 0.002
"""A few launches that happen to agree say little of the spread: it is not taken to be smaller than
this, a fifth of what launches of one program differ by on a quiet machine, while contenders race."""


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """All launches of a contender against another one."""

    log: float
    """Mean of the log speedups."""
    half_width: float | None
    """Of the interval at the level asked for; None below two launches."""
    p_value: float | None
    """Two-sided."""
    launches: int

    @property
    def speedup(self) -> float:
        """Above 1: faster than the other one."""
        return math.exp(self.log)

    @property
    def low(self) -> float:
        """Lower end of the log speedup; minus infinity without an interval."""
        return -math.inf if self.half_width is None else self.log - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the log speedup."""
        return math.inf if self.half_width is None else self.log + self.half_width

    def interval(self, alpha: float) -> Interval | None:
        """Of the speedup."""
        if self.half_width is None:
            return None
        return Interval(low=math.exp(self.low), high=math.exp(self.high), confidence=1 - alpha)


def pooled(effects: Sequence[float], *, alpha: float, least_sd: float = LEAST_SD) -> Pooled:
    """What the launches say together; `effects` are log speedups, one for each launch."""
    count = len(effects)
    if not count:
        raise ValueError("no launch to pool")
    log = fmean(effects)
    if count == 1:
        return Pooled(log=log, half_width=None, p_value=None, launches=1)
    error = max(stdev(effects), least_sd, SD_FLOOR) / math.sqrt(count)
    return Pooled(
        log=log,
        half_width=_critical(alpha, count - 1) * error,
        p_value=two_sided_p(log / error, count - 1.0),
        launches=count,
    )


@cache
def _critical(alpha: float, df: int) -> float:
    """A race asks for the same few again and again."""
    return two_sided_critical(alpha, float(df))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): claiming those below alpha errs at all with chance alpha."""
    count = len(p_values)
    adjusted = [1.0] * count
    largest = 0.0
    for place, index in enumerate(sorted(range(count), key=lambda one: p_values[one])):
        largest = max(largest, min(1.0, (count - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted
