"""Divide the time budget of a session over launches, and decide which launch is the last.

The budget starts when the first launch is ready: its imports, compilation and checks are preparation,
and so is the extensive check of results after its last block. Everything else counts, including
process starts. Before each launch, the remaining time is divided again: for each number of further
launches, the half-width of the final interval is predicted from the start-up time, the spread between
launches and the noise of pairs, and the number with the smallest half-width is chosen. All further
launches have the same length.

A launch that cannot lead to a verdict is not started: if time allows fewer launches than a verdict
needs, one launch uses the whole time, and its result is valid for its own processes only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from torchyard.bench.time_estimate import (
    LATER_START_SHARE,
    OVERTIME,
    SHORTEST_S,
    is_count_fixed,
    preparation_s,
)
from torchyard.core.study import Budget
from torchyard.stats.estimate import PRECISE_SHARE, InterimResult
from torchyard.stats.launch_model import LaunchSummary, half_width, typical_spread
from torchyard.stats.launches import median_variance
from torchyard.stats.stopping import chance_of_verdict

MIN_ROUNDS: Final = 6
MIN_LONG_ROUNDS: Final = 3
LONG_ROUND_S: Final = 0.5
"""Longer rounds average over short disturbances, so a launch needs fewer of them."""
WARM_SHARE: Final = 0.2
"""Compiling from caches, as a share of compiling in the first launch."""
FORK_S: Final = 1.0
"""Time to fork processes from a template and to build the workload in them."""
SMALLEST_CHANCE: Final = 0.1
"""Measuring ends if the predicted probability of a verdict within the budget is smaller."""
_TYPICAL_PAIR_SD: Final = 0.02
_NEEDED_FOR_SMALL: Final = 3
"""Two launches decide large effects only."""
_LARGE_EFFECT: Final = math.log(1.5)
_TYPICAL_QUANTILE: Final = 2.5
_UNKNOWN: Final = InterimResult(effect=None, summary=None, pair_sd=None)
MIN_FITTING_SHARE: Final = 0.5
"""Another launch starts only if at least this share of its shortest length fits."""


def min_rounds(round_s: float) -> int:
    """Return the minimum number of rounds of a launch."""
    return MIN_ROUNDS if round_s < LONG_ROUND_S else MIN_LONG_ROUNDS


def later_start_s(*, processes_s: float, compiling_s: float, warming_s: float) -> float:
    """Estimate the start-up time of a later launch from the parts of the first one that recur.

    Template processes, accuracy checks and metrics do not recur; compiled code comes from caches.
    """
    return processes_s + WARM_SHARE * compiling_s + warming_s


class SessionClock:
    """Measuring time of one session, and the length of its launches."""

    def __init__(self, budget: Budget, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._began: float | None = None
        self._waited_s = 0.0
        self._waited_before_s = 0.0
        self._checking_s = 0.0
        self._starts_s: list[float] = []
        """Part of the start-up time of each launch that recurs in later ones."""
        self._round_s = 0.0
        self._rounds_done = 0
        self._after_s = 0.0
        self._is_first_known = False
        self.last_start_s = 0.0
        """Start-up time of the latest launch."""
        self.why_ended = ""
        """Why measuring ended before the end of the budget; empty otherwise."""
        self._done = 0
        self._results: tuple[InterimResult, ...] = ()
        self._seconds = 0.0

    @property
    def elapsed_s(self) -> float:
        """Measuring time used, without waiting for other sessions and the first check of results."""
        if self._began is None:
            return 0.0
        waited_s = self._waited_s - self._waited_before_s
        return self._clock() - self._began - waited_s - self._checking_s

    @property
    def is_running(self) -> bool:
        """Whether the first launch is ready, so that time counts."""
        return self._began is not None

    @property
    def fraction(self) -> float:
        """Used share of the budget, below 1, which is reserved for the final analysis."""
        return min(0.999, max(1e-6, self.elapsed_s / self._budget.time_s))

    def launch_ready(
        self,
        start_s: float,
        *,
        round_s: float = 0.0,
        later_start_s: float | None = None,
        waited_s: float = 0.0,
    ) -> None:
        """Record that the processes are warm; the clock starts with the first launch.

        `round_s` is the expected duration of a round, `later_start_s` the part of the start-up time that
        recurs in later launches, where known, and `waited_s` the total time that the session has waited
        for others so far.
        """
        self.last_start_s = start_s
        recurs = later_start_s is not None
        self._starts_s.append(start_s if later_start_s is None else later_start_s)
        self._is_first_known = recurs if len(self._starts_s) == 1 else self._is_first_known
        self._waited_s = waited_s
        if self._round_s <= 0.0:
            self._round_s = round_s
        if self._began is None:
            self._began = self._clock()
            self._waited_before_s = waited_s

    def waited(self, waited_s: float) -> None:
        """Record the total time that the session has waited for others so far."""
        self._waited_s = waited_s

    def launch_done(self, *, wall_s: float, rounds: int, after_s: float = 0.0) -> None:
        """Record a finished launch: its measuring time, number of rounds, and the time after them.

        The results of the first launch are checked with more inputs, once.
        """
        if self._done == 0:
            self._checking_s = after_s
        else:
            self._after_s = after_s
        self._done += 1
        self._rounds_done += rounds
        self._round_s = wall_s / max(1, rounds)

    def learn(self, results: Sequence[InterimResult]) -> None:
        """Plan the remaining launches from the results of the active candidates."""
        self._results = tuple(results)

    def seconds_for_rounds(self) -> float:
        """Return how long the launch that is now ready measures."""
        remaining_s = self._budget.time_s - self.elapsed_s
        if self._budget.max_launches == 1:
            self._seconds = self._budget.time_s
        elif self._budget.launch_s is not None:
            self._seconds = min(self._budget.launch_s, self._fair_share_s(remaining_s))
        else:
            further = self._further_launches(remaining_s)
            self._seconds = (remaining_s - (further - 1) * self._start_guess_s()) / further
        self._seconds = max(SHORTEST_S, self._seconds)
        return self._seconds

    def why_one_launch(self) -> str:
        """Return why the first launch, which is ready, will be the only one; empty if more are planned."""
        if is_count_fixed(self._budget) or self._budget.max_launches == 1 or self._done:
            return ""
        start_s = self._start_guess_s()
        if self._further_launches(self._budget.time_s) > 1:
            return ""
        needed_s = 2 * start_s + _NEEDED_FOR_SMALL * self._shortest_s
        return (
            f"a time of {self._budget.time_s:g} s allows one launch, since another one takes about "
            f"{start_s:.0f} s to start: the interval is valid for these processes only; "
            f"a verdict needs about --time {math.ceil(needed_s)}s"
        )

    def is_last_launch(self) -> bool:
        """Whether no further launch is started after the one that just ended."""
        if self._done >= self._budget.max_launches:
            return True
        remaining_s = self._budget.time_s - self.elapsed_s
        if is_count_fixed(self._budget) and self._done < self._budget.min_launches:
            return remaining_s < -(OVERTIME - 1.0) * self._budget.time_s
        further = self._fitting(remaining_s)
        if further < 1:
            return True
        if self._budget.precision_goal <= 0.0:
            return False
        most = self._done + further
        if not self._results or not all(self._is_hopeless(one, most) for one in self._results):
            return False
        self.why_ended = (
            f"measuring ended after {self.elapsed_s:.0f} of {self._budget.time_s:g} s: at most {most} "
            f"launches fit, with which a verdict is unlikely"
        )
        return True

    def forked_launches_left(self) -> int:
        """Return how many launches would be planned if templates were started now."""
        remaining_s = self._budget.time_s - self.elapsed_s - self._start_guess_s()
        return self._further_launches(remaining_s, FORK_S + self._after_s)

    def expected_remaining_s(self) -> float:
        """Return the expected measuring time until the session ends, by verdicts or by time."""
        remaining_s = max(0.0, self._budget.time_s - self.elapsed_s)
        if self._budget.precision_goal <= 0.0 or not self._results:
            return remaining_s
        launch_s = self._start_guess_s() + max(self._seconds, self._shortest_s)
        most = int(remaining_s / launch_s) + 1
        return min(remaining_s, launch_s * max(self._needed(one, most) for one in self._results))

    def _needed(self, result: InterimResult, most: int) -> int:
        """Return the expected number of further launches until this candidate is decided."""
        if result.effect is None:
            return most
        sigma = _sigma(result, min_rounds(self._round_s))
        goal = max(self._budget.precision_goal, PRECISE_SHARE * abs(result.effect))
        for further in range(most):
            total = self._done + further
            large = abs(result.effect) > _LARGE_EFFECT
            if total < 2 or (total < _NEEDED_FOR_SMALL and not large):  # noqa: PLR2004
                continue
            if _TYPICAL_QUANTILE * sigma / math.sqrt(total) <= goal:
                return further
        return most

    @property
    def _shortest_s(self) -> float:
        return max(SHORTEST_S, min_rounds(self._round_s) * self._round_s)

    def _fair_share_s(self, remaining_s: float) -> float:
        """Return the largest length that leaves time for the launches that are still required."""
        required = max(1, min(self._budget.min_launches, self._budget.max_launches) - self._done)
        return (remaining_s - (required - 1) * self._start_guess_s()) / required

    def _fitting(self, remaining_s: float) -> int:
        """Return the number of launches that can still be started, each of the shortest length."""
        launch_s = self._start_guess_s() + self._shortest_s
        fitting = int(remaining_s / launch_s + 1.0 - MIN_FITTING_SHARE)
        return min(fitting, self._budget.max_launches - self._done)

    def _further_launches(self, remaining_s: float, start_s: float | None = None) -> int:
        """Return the number of launches, with the one that is ready, for the narrowest interval."""
        start_s = self._start_guess_s() if start_s is None else start_s
        most = int((remaining_s + start_s) / (start_s + self._shortest_s))
        most = max(1, min(most, self._budget.max_launches - self._done))
        required = 1
        if is_count_fixed(self._budget):
            required = max(1, self._budget.min_launches - self._done)
        if most <= required:
            return required
        counts = [most]
        while counts[-1] > required:
            counts.append(max(required, min(counts[-1] - 1, int(counts[-1] / 1.2))))
        return min(counts, key=lambda count: self._expected_width(count, remaining_s, start_s))

    def _expected_width(self, further: int, remaining_s: float, start_s: float) -> float:
        """Return the half-width of the final interval with this number of further launches."""
        length_s = (remaining_s - (further - 1) * start_s) / further
        rounds = max(float(min_rounds(self._round_s)), length_s / max(self._round_s, 1e-3))
        total = self._done + further
        if total < 2:  # noqa: PLR2004
            return math.inf
        # Finished launches have a fixed number of rounds; the variance depends on the harmonic mean.
        done_rounds = self._rounds_done / max(1, self._done)
        inverse = further / rounds + (self._done / done_rounds if self._done else 0.0)
        mean_rounds = total / inverse
        noisiest = max(self._results or (_UNKNOWN,), key=lambda one: _sigma(one, mean_rounds))
        predicted = LaunchSummary(
            launches=total,
            spread=_sigma(noisiest, mean_rounds),
            pair_variance=_pair_variance(noisiest, mean_rounds),
        )
        return half_width(predicted, self._budget.alpha)

    def _is_hopeless(self, result: InterimResult, most: int) -> bool:
        """Whether a verdict is very unlikely even if all remaining time is used."""
        if result.effect is None:
            return False
        if most < _NEEDED_FOR_SMALL:
            return abs(result.effect) < _LARGE_EFFECT
        if result.summary is None or result.summary.launches < _NEEDED_FOR_SMALL:
            return False
        budget = self._budget
        chance = chance_of_verdict(
            result.effect, result.summary, most, margin=budget.margin, alpha=budget.alpha
        )
        return chance < SMALLEST_CHANCE

    def _start_guess_s(self) -> float:
        """Estimate the start-up time of a later launch."""
        if not self._starts_s:
            return 0.0
        if len(self._starts_s) > 1:
            return min(self._starts_s[-1], median(self._starts_s[1:])) + self._after_s
        if self._is_first_known:
            return self._starts_s[0] + self._after_s
        return LATER_START_SHARE * self._starts_s[0]


class SessionProgress:
    """Completed share of a session and the time that remains, in all of its phases.

    The duration of the preparation is a guess until it ends: a share of the time so far is added once
    the guess is exceeded.
    """

    def __init__(
        self, clock: SessionClock, *, compiled: int, began: Callable[[], float] = time.monotonic
    ) -> None:
        """`compiled` is the number of variants that are compiled."""
        self._clock = clock
        self._now = began
        self._began_s = began()
        self._preparation_s = preparation_s(compiled)
        self._fraction = 0.0

    @property
    def remaining_s(self) -> float:
        """Expected time until the session ends."""
        remaining_s = self._clock.expected_remaining_s()
        if not self._clock.is_running:
            elapsed_s = self._now() - self._began_s
            remaining_s += max(self._preparation_s - elapsed_s, 0.3 * elapsed_s)
        return remaining_s

    @property
    def fraction(self) -> float:
        """Completed share; never decreases."""
        elapsed_s = self._now() - self._began_s
        share = elapsed_s / max(elapsed_s + self.remaining_s, 1e-9)
        self._fraction = max(self._fraction, min(1.0, share))
        return self._fraction


def _pair_variance(result: InterimResult, rounds: float) -> float:
    """Return the variance of the effect of a launch that its pairs imply."""
    pair_sd = _TYPICAL_PAIR_SD if result.pair_sd is None else result.pair_sd
    return median_variance(pair_sd**2 / rounds)


def _sigma(result: InterimResult, rounds: float) -> float:
    """Return the expected standard deviation of the effects of launches."""
    return math.hypot(typical_spread(result.summary), math.sqrt(_pair_variance(result, rounds)))
