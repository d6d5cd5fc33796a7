"""Durations of a session that are known or assumed before it starts. No I/O, no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchyard.core.study import Budget

SHORTEST_S: Final = 0.3
"""Shortest measuring time of a launch."""
LATER_START_SHARE: Final = 0.3
"""Start-up time of a later launch as a share of the first, which also compiles and checks."""
OVERTIME: Final = 2.0
"""Factor on the budget until which an explicit number of launches is completed."""
_START_S: Final = 6.0
_COMPILE_S: Final = 12.0


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range of durations or sizes."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(low=self.low + other.low, high=self.high + other.high)

    def times(self, factor: float) -> Range:
        """Scale both ends."""
        return Range(low=self.low * factor, high=self.high * factor)


def is_count_fixed(budget: Budget) -> bool:
    """Whether the user asked for a number of launches, which time does not cut."""
    return budget.min_launches == budget.max_launches or budget.min_launches > Budget.min_launches


def preparation_s(compiled: int) -> float:
    """Return the assumed time until the first launch is ready, with this number of compiled variants."""
    return _START_S + compiled * _COMPILE_S


def measuring_s(budget: Budget, *, start_s: float | None = None) -> Range:
    """Return how long a session measures: from the first possible decision to the whole budget.

    `start_s` is the startup time of a launch, where known. The earliest decision is after
    `min_launches` launches of the shortest length. An explicit number of launches is completed even
    if that takes up to twice the budget.
    """
    least = max(1, min(budget.min_launches, budget.max_launches))
    is_fixed = is_count_fixed(budget)
    bound_s = budget.time_s * (OVERTIME if is_fixed else 1.0)
    early_s = min(budget.time_s, least * max(SHORTEST_S, budget.launch_s or 0.0))
    if budget.precision_goal <= 0 or budget.max_launches == 1:
        early_s = budget.time_s
    if start_s is None:
        return Range(low=early_s, high=bound_s)
    return Range(low=min(bound_s, early_s + (least - 1) * start_s), high=bound_s + start_s)
