"""How long a launch measures, and which one is the last.

The time allowed begins when the first launch is ready: its imports, its compilation and its checks
are preparation. Everything later counts, starting processes included, because how many launches to
start is this module's own choice. After some launches the split follows Kalibera and Jones: longer
launches where pairs are noisy, more launches where processes differ.
"""

from __future__ import annotations

import time
from typing import Final

from torchyard.core.comparison import Estimate
from torchyard.core.study import Budget
from torchyard.measure.rounds import LaunchTiming
from torchyard.stats.planning import pairs_per_launch

__all__ = ["Pace"]

FIRST_GUESS_LAUNCHES: Final = 8
SHORTEST_S: Final = 1.0
CUT_SHARE: Final = 0.5
"""Another launch is begun only if at least this share of it fits into what is left."""


class Pace:
    """Keeps the time of one session."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._began: float | None = None
        self._waited_s = 0.0
        self._waited_before_s = 0.0
        self._starts_s: list[float] = []
        self._round_s = 0.0
        self._done = 0
        self._wanted_s: float | None = None
        self._seconds = 0.0

    @property
    def elapsed_s(self) -> float:
        """Measuring time used; waiting for others' turns is not."""
        if self._began is None:
            return 0.0
        return time.monotonic() - self._began - (self._waited_s - self._waited_before_s)

    @property
    def fraction(self) -> float:
        """Share of the time allowed, short of 1, which the last look alone may claim."""
        return min(0.999, max(1e-6, self.elapsed_s / self._budget.time_s))

    @property
    def fraction_of_session(self) -> float:
        """For progress: nothing before the first launch is ready."""
        return 0.0 if self._began is None else min(1.0, self.elapsed_s / self._budget.time_s)

    @property
    def last_start_s(self) -> float:
        """How long the latest launch took to be ready."""
        return self._starts_s[-1]

    def launch_ready(self, start_s: float, *, waited_s: float = 0.0) -> None:
        """The processes are up and warm; the clock runs from the first time this happens.

        `waited_s` is all that the session has waited for others until now.
        """
        self._starts_s.append(start_s)
        self._waited_s = waited_s
        if self._began is None:
            self._began = time.monotonic()
            self._waited_before_s = waited_s

    def launch_done(self, timing: LaunchTiming) -> None:
        """A launch ended."""
        self._done += 1
        self._round_s = timing.wall_s / max(1, timing.rounds)

    def learn(self, found: Estimate, pairs_in_launch: float) -> None:
        """Choose the length of the coming launches from the spreads seen so far."""
        if (
            found.launch_sd is None
            or found.pair_sd is None
            or self._done < self._budget.min_launches
        ):
            return
        pairs = pairs_per_launch(
            pair_sd=found.pair_sd,
            launch_sd=found.launch_sd,
            launch_cost_s=self._start_guess_s(),
            pair_cost_s=max(self._round_s, 1e-3),
            pairs_so_far=max(1, round(pairs_in_launch)),
        )
        self._wanted_s = pairs * self._round_s

    def seconds_for_rounds(self) -> float:
        """How long the launch that is now ready shall measure."""
        budget_s, start_s = self._budget.time_s, self._start_guess_s()
        launches = min(self._budget.max_launches, FIRST_GUESS_LAUNCHES)
        share_s = (budget_s - (launches - 1) * start_s) / launches
        wanted_s = self._wanted_s if self._wanted_s is not None else share_s
        if self._budget.launch_s is not None:
            wanted_s = self._budget.launch_s
        still = max(1, min(self._budget.min_launches, self._budget.max_launches) - self._done)
        left_s = budget_s - self.elapsed_s
        at_most_s = (left_s - (still - 1) * start_s) / still
        self._seconds = max(SHORTEST_S, min(wanted_s, at_most_s))
        if self._budget.max_launches == 1:
            self._seconds = budget_s
        return self._seconds

    def is_last_launch(self) -> bool:
        """Whether the launch that just ended was the last one that fits."""
        if self._done >= self._budget.max_launches:
            return True
        next_s = self._start_guess_s() + max(self._seconds, SHORTEST_S)
        left_s = self._budget.time_s - self.elapsed_s
        if self._done < self._budget.min_launches:
            return left_s < -self._budget.time_s
        return left_s < CUT_SHARE * next_s

    def _start_guess_s(self) -> float:
        """Later launches are the ones to go by: the first one compiled and checked as well."""
        later = self._starts_s[1:]
        if later:
            return sum(later) / len(later)
        return 0.3 * self._starts_s[0] if self._starts_s else 0.0
