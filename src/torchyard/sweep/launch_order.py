"""The order of launches over all cells of a sweep, and which launches fit into its time budget.

First every cell gets one launch, in random order. If cells prepare while another one is timed, those
with the longest preparation come first instead, so that it does not remain at the end. Then undecided cells get further launches, also
in passes: in each pass every one of them gets at most one, first those that are expected to need the
least time until a verdict. No cell gets two launches in a row while others wait, because launches
that are close in time share the state of the machine. A small share of the launches goes to a random
cell of the pass, since expectations are uncertain. No I/O, no clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from typing import Final

from torchyard.core.study import Budget
from torchyard.sweep.cell_gate import CellReport, OpenComparison

RANDOM_SHARE: Final = 0.1
TYPICAL_SD: Final = 0.015
"""Standard deviation between launches that is expected before any is observed."""
TYPICAL_WEIGHT: Final = 3.0
"""Degrees of freedom that the typical standard deviation counts for."""
LARGE_EFFECT: Final = math.log(1.5)
"""Two launches decide only larger effects."""
LATER_SHARE: Final = 0.6
"""Duration of a later launch as a share of the first, which also compiles and checks accuracy; used
until both have been observed for some cell."""
FITTING_SHARE: Final = 0.8
"""A launch starts if this share of its expected duration fits into the remaining time."""


class LaunchOrder:
    """Chooses the next launch, and estimates the durations of launches."""

    def __init__(
        self,
        budgets: Mapping[str, Budget],
        *,
        seed: int = 0,
        first_launch_s: Mapping[str, float] | None = None,
        longest_first: bool = False,
    ) -> None:
        """`budgets` are by cell id; `first_launch_s` has expected durations, where known.

        With `longest_first`, first launches that are expected to take longest come first, those of
        unknown duration before them.
        """
        self._budgets = dict(budgets)
        self._chance = random.Random(f"launch order/{seed}")
        places = list(self._budgets)
        self._chance.shuffle(places)
        self._place = {cell: place for place, cell in enumerate(places)}
        self._expected_s = dict(first_launch_s or {})
        self._longest_first = longest_first
        self._had_turn: set[str] = set()
        """Cells with a launch in the current pass."""
        self._first_s: dict[str, float] = {}
        self._later_s: dict[str, list[float]] = {}

    def record(self, cell: str, launch_s: float) -> None:
        """Record the duration of a launch, in the order of the cell's launches."""
        if cell in self._first_s:
            self._later_s.setdefault(cell, []).append(launch_s)
        else:
            self._first_s[cell] = launch_s

    def forget(self, cell: str) -> None:
        """Discard the launches of a cell that is measured again."""
        self._first_s.pop(cell, None)
        self._later_s.pop(cell, None)

    def next_fresh(self, cells: Collection[str], *, remaining_s: float = math.inf) -> str | None:
        """Return the cell that gets its first launch next; None if none fits into the time."""
        fitting = [one for one in cells if self._fits(self.first_launch_s(one), remaining_s)]
        return min(fitting, key=self._first_priority, default=None)

    def _first_priority(self, cell: str) -> tuple[float, int, str]:
        """Return the sort key of first launches: the longest, or else the random order."""
        expected_s = self._expected_s.get(cell, math.inf) if self._longest_first else 0.0
        return (-expected_s, self._place.get(cell, 0), cell)

    def next_waiting(
        self, reports: Mapping[str, CellReport], *, remaining_s: float = math.inf
    ) -> str | None:
        """Return the waiting cell that gets the next launch; None if none fits into the time."""
        fitting = {one for one in reports if self._fits(self.later_launch_s(one), remaining_s)}
        if not fitting:
            return None
        if fitting <= self._had_turn:
            self._had_turn.clear()
        waiting = sorted(fitting - self._had_turn)
        if self._chance.random() < RANDOM_SHARE:
            chosen = self._chance.choice(waiting)
        else:
            chosen = min(waiting, key=lambda one: self._priority(one, reports[one]))
        self._had_turn.add(chosen)
        return chosen

    def least_promising(self, reports: Mapping[str, CellReport]) -> str | None:
        """Return the waiting cell that is expected to need the most time until a verdict."""
        return max(reports, key=lambda one: self._priority(one, reports[one]), default=None)

    def first_launch_s(self, cell: str) -> float:
        """Return the expected duration of a first launch; 0 while nothing is known."""
        if cell in self._expected_s:
            return self._expected_s[cell] * self._pace()
        observed = self._first_s.values()
        return math.fsum(observed) / len(observed) if observed else 0.0

    def later_launch_s(self, cell: str) -> float:
        """Return the expected duration of a further launch of a cell."""
        own = self._later_s.get(cell)
        if own:
            return own[-1]
        return self._later_ratio() * self._first_s.get(cell, 0.0)

    def _pace(self) -> float:
        """Return how much longer first launches take than expected, over those so far."""
        pairs = [
            (s, self._expected_s[c]) for c, s in self._first_s.items() if c in self._expected_s
        ]
        expected_s = math.fsum(expected for _, expected in pairs)
        return math.fsum(observed for observed, _ in pairs) / expected_s if expected_s else 1.0

    def _later_ratio(self) -> float:
        cells = [one for one in self._later_s if one in self._first_s]
        first_s = math.fsum(self._first_s[one] for one in cells)
        later_s = math.fsum(self._later_s[one][0] for one in cells)
        return later_s / first_s if first_s else LATER_SHARE

    def _fits(self, launch_s: float, remaining_s: float) -> bool:
        return FITTING_SHARE * launch_s <= remaining_s

    def _priority(self, cell: str, report: CellReport) -> tuple[float, int, str]:
        """Return the sort key: the expected time until a verdict, then the random order."""
        budget = self._budgets.get(cell, Budget())
        launches = min(
            (launches_to_verdict(one, report.launches, budget) for one in report.undecided),
            default=1.0,
        )
        launch_s = max(self.later_launch_s(cell), 1e-3)
        return (launches * launch_s, self._place.get(cell, 0), cell)


def launches_to_verdict(one: OpenComparison, launches: int, budget: Budget) -> float:
    """Return how many more launches a comparison is expected to need; infinite if unreachable."""
    from torchyard.stats.estimate import PRECISE_SHARE  # numpy is not needed inside of jobs
    from torchyard.stats.stopping import launches_needed

    degrees = max(0, launches - 1) if one.launch_sd is not None else 0
    own_variance = degrees * (one.launch_sd or 0.0) ** 2
    variance = (own_variance + TYPICAL_WEIGHT * TYPICAL_SD**2) / (degrees + TYPICAL_WEIGHT)
    effect, margin = abs(one.log_speedup), math.log1p(budget.margin)
    # Half-width at which the interval excludes 1, or lies within the margin.
    width = max(effect, margin - effect)
    if budget.precision_goal > 0.0:
        width = min(width, max(budget.precision_goal, PRECISE_SHARE * effect))
    least = budget.min_launches if effect > LARGE_EFFECT else max(3, budget.min_launches)
    needed = launches_needed(math.sqrt(variance), width, alpha=budget.alpha, at_least=max(2, least))
    if needed is None or needed > budget.max_launches:
        return math.inf
    return float(max(1, needed - launches))
