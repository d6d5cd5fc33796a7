"""Comparison of the good and the bad end, before a search begins: they must differ.

Independent of git and of programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, TypeVar

from torchyard.bench.outcome import Spent, make_estimate
from torchyard.bench.program_session import MIN_PAIRS
from torchyard.bisect.failures import failed_runs, posterior_of_failures
from torchyard.bisect.model import Analysis, Record, Revision, Round, State
from torchyard.bisect.noise import MAD_TO_SD, MIN_ROUNDS, outlier_limit
from torchyard.bisect.posterior import CREDIBILITY, Posterior
from torchyard.core.block import Block
from torchyard.core.comparison import Estimate, Verdict
from torchyard.core.study import Budget
from torchyard.core.units import format_duration, format_percent
from torchyard.errors import NothingToDo, Untrustworthy
from torchyard.stats.distributions import two_counts_p
from torchyard.stats.launches import SD_FLOOR
from torchyard.stats.pairs import DIRTY_SHARE_LIMIT, ONE_SIDED_P, PairedLaunches, pair_blocks
from torchyard.stats.stopping import InterimAnalysis

T = TypeVar("T")
Measure = Callable[[Sequence[Revision], int], Round]
"""Run some revisions once, in random order; the second argument is the number of the round."""
Listener = Callable[[str, Posterior | None], None]
"""Progress callback: what is measured next, and the posterior so far."""

_GROWTH: Final = 1.25
"""Factor between the numbers of pairs at successive analyses of both ends."""
_MOST_FAILURE_PAIRS: Final = 20
"""Pairs without more failures on one side after which both sides count as the same."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What a search works with: the stored state, how to measure and to record, and the budget."""

    state: State
    measure: Measure
    record: Callable[[Record], None]
    """Store a record and add it to `state`."""
    budget: Budget
    listener: Listener
    failures: bool = False
    """Whether runs fail or not, instead of having a value."""
    noun: str = "revision"
    quantity: str = "time"
    unlikely: frozenset[str] = frozenset()
    """Revisions that touch no code."""
    flat_prior: bool = False
    """Whether the next revision is chosen without signatures and touched files."""


def log_values(rounds: Sequence[Round], place: Mapping[str, int]) -> list[dict[int, float]]:
    """Return the log values of the rounds; disturbed rounds are left out unless most are."""
    clean = [one for one in rounds if not any(block.dirty for block in one.blocks)]
    used = clean if len(clean) >= (1.0 - DIRTY_SHARE_LIMIT) * len(rounds) else rounds
    return [
        {
            place[block.variant]: math.log(block.median_ns)
            for block in one.blocks
            if block.variant in place
        }
        for one in used
    ]


def pairs_of(blocks: Sequence[Block], name: str, other: str) -> PairedLaunches:
    """Pair the runs of two programs, without pairs that something else on the machine disturbed.

    Those are outliers. All are kept if they are slower runs of one program significantly more often than of
    the other: they are part of its time then.
    """
    paired = pair_blocks(blocks, name, other)
    values = {index: one[0] for index, one in enumerate(paired.medians) if one}
    if len(values) < MIN_PAIRS:
        return paired
    centre = median(values.values())
    spread = MAD_TO_SD * median(abs(value - centre) for value in values.values())
    limit = outlier_limit(len(values)) * max(spread, SD_FLOOR)
    low, high = (
        {index for index, value in values.items() if sign * (value - centre) > limit}
        for sign in (-1.0, 1.0)
    )
    if not low | high or two_counts_p(len(low), len(high)) < ONE_SIDED_P:
        return paired
    keep = [index not in low | high for index in range(len(paired.medians))]
    return replace(
        paired,
        medians=_kept(paired.medians, keep),
        means=_kept(paired.means, keep),
        times=_kept(paired.times, keep),
        dropped=paired.dropped + len(low | high),
    )


def _kept(launches: Sequence[tuple[T, ...]], keep: Sequence[bool]) -> tuple[tuple[T, ...], ...]:
    """Return the launches with those not to keep emptied, so that their numbers stay."""
    return tuple(one if use else () for one, use in zip(launches, keep, strict=True))


class EndsComparison:
    """Good against bad, by the ordinary statistics; for failures, by their posterior."""

    def __init__(self, good: str, bad: str, experiment: Experiment) -> None:
        """`good` and `bad` are the names of both ends in blocks."""
        self._names = (good, bad)
        self._state = experiment.state
        self._record = experiment.record
        self._budget = experiment.budget
        self._failures = experiment.failures
        self._quantity = experiment.quantity

    def run(self, measure_pair: Callable[[int], None]) -> None:
        """Measure pairs until the ends are shown to differ; raise if they are not."""
        state = self._state
        pairs = len(state.rounds)
        analyzed = state.analyses[-1].launches if state.analyses else 0
        first = MIN_ROUNDS if self._failures else MIN_PAIRS
        next_analysis = max(first, round(analyzed * _GROWTH), analyzed + 1)
        while not state.passed:
            last = pairs >= first and self.time_is_up()
            if pairs >= next_analysis or last:
                passed, same, text, hint = self._analyze()
                if pairs > analyzed:
                    analyzed = pairs
                    self._record(Analysis(launches=pairs, elapsed_s=state.elapsed_s, passed=passed))
                if same:
                    raise NothingToDo(
                        "no difference between good and bad",
                        why=text,
                        hint="check both ends and --command"
                        + ("" if self._failures else ", or lower --margin"),
                    )
                if not passed and last:
                    raise Untrustworthy(
                        "good and bad are not shown to differ, so no culprit can be found",
                        why=f"{text} after {pairs} pairs",
                        hint=hint,
                    )
                next_analysis = max(pairs + 1, round(pairs * _GROWTH))
                continue
            measure_pair(pairs + 1)
            pairs = len(state.rounds)

    def _analyze(self) -> tuple[bool, bool, str, str]:
        """Return whether the ends differ, whether they are the same, why, and a hint."""
        if self._failures:
            counts = self.failed()
            posterior = posterior_of_failures(self._rounds(), 1, no_change=0.5)
            did = "was wrong" if self._quantity == "accuracy" else "failed"
            text = f"good {did} in {_share(counts[0])} runs, bad in {_share(counts[1])}"
            passed = posterior.single[1] >= CREDIBILITY
            same = not passed and counts[0][1] >= _MOST_FAILURE_PAIRS and posterior.no_change > 0.5  # noqa: PLR2004
            return passed, same, text, "raise --time; measurements are kept"
        estimate = self.estimate()
        passed = _differ(estimate, self._budget)
        same = not passed and estimate.verdict is Verdict.SAME
        text = _estimate_text(estimate, self._quantity)
        if same:
            text += f": the same within {format_percent(self._budget.margin)}"
        return passed, same, text, _time_hint(estimate, self._state.elapsed_s)

    def failed(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return failed and all runs of both ends."""
        rounds = self._rounds()
        return failed_runs(rounds, 0), failed_runs(rounds, 1)

    def _rounds(self) -> list[dict[int, float]]:
        return log_values(self._state.rounds, {name: i for i, name in enumerate(self._names)})

    def time_is_up(self) -> bool:
        """Whether no further round fits the time; half of one may exceed it."""
        rounds = len(self._state.rounds)
        return rounds > 0 and self._state.elapsed_s * (1 + 0.5 / rounds) >= self._budget.time_s

    def estimate(self) -> Estimate:
        """Estimate good against bad, from the rounds until the last analysis that was needed."""
        state, budget = self._state, self._budget
        points = [(one.launches, one.elapsed_s) for one in state.analyses]
        if not state.passed and (not points or points[-1][0] < len(state.rounds)):
            points.append((len(state.rounds), state.elapsed_s))
        pairs, elapsed_s = points[-1]
        blocks = [block for one in state.rounds[:pairs] for block in one.blocks]
        analyses = [
            InterimAnalysis(launches=number, fraction=min(0.999, max(1e-6, s / budget.time_s)))
            for number, s in points
        ]
        spent = Spent(elapsed_s=elapsed_s, launches=pairs)
        return make_estimate(pairs_of(blocks, *self._names), analyses, budget, spent)


def _share(counts: tuple[int, int]) -> str:
    return f"{counts[0]} of {counts[1]}"


def _differ(estimate: Estimate, budget: Budget) -> bool:
    large = abs(math.log(estimate.speedup)) > math.log1p(budget.margin)
    return large and estimate.verdict in {Verdict.FASTER, Verdict.SLOWER}


def _estimate_text(estimate: Estimate, quantity: str) -> str:
    if estimate.interval is None:
        return "no confidence interval"
    low, high = 1.0 / estimate.interval.high - 1.0, 1.0 / estimate.interval.low - 1.0
    return (
        f"bad takes {format_percent(1.0 / estimate.speedup - 1.0, signed=True)} {quantity} "
        f"(95 % CI {format_percent(low, signed=True)} to {format_percent(high, signed=True)})"
    )


def _time_hint(estimate: Estimate, elapsed_s: float) -> str:
    """Return how much time an answer needs."""
    needed_s = estimate.time_needed_s
    if needed_s is None and estimate.time_needed_range_s is not None:
        needed_s = estimate.time_needed_range_s[1]
    if needed_s is None or needed_s <= elapsed_s:
        return "raise --time, or use ends that differ more; measurements are kept"
    return (
        f"a verdict needs about {format_duration(needed_s * 1e9)} of measuring: raise --time; "
        "measurements are kept"
    )
