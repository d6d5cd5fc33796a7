"""The search: compare both ends, then measure the revision that halves the posterior, until decided.

Knows neither git nor programs: `measure` returns a round of some revisions. Simulations run the same
code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from torchyard.bench.outcome import Spent, make_estimate
from torchyard.bench.program_session import MAX_PAIRS, MIN_PAIRS
from torchyard.bisect.model import (
    Analysis,
    Ending,
    Outcome,
    Record,
    Revision,
    Round,
    Skipped,
    State,
)
from torchyard.bisect.posterior import (
    Posterior,
    candidates,
    effect_of,
    next_revision,
    posterior_of,
)
from torchyard.core.comparison import Estimate, Verdict
from torchyard.core.study import Budget
from torchyard.core.units import format_duration, format_percent
from torchyard.errors import NothingToDo, StepFailed, Untrustworthy
from torchyard.stats.pairs import DIRTY_SHARE_LIMIT, pair_blocks
from torchyard.stats.stopping import InterimAnalysis

__all__ = ["Measure", "RevisionFailed", "Search", "search_budget"]

_GROWTH: Final = 1.25
"""Factor between the numbers of pairs at successive analyses of both ends."""


class RevisionFailed(Exception):
    """A revision cannot be measured."""

    def __init__(self, commit: str, why: str) -> None:
        super().__init__(why)
        self.commit = commit
        self.why = why


Measure = Callable[[Sequence[Revision], int], Round]
"""Run some revisions once, in random order; the second argument is the number of the round."""
Listener = Callable[[str, Posterior | None], None]
"""Progress callback: what is measured next, and the posterior so far."""


def search_budget(*, time_s: float, margin: float) -> Budget:
    """Return the budget of a search."""
    return Budget(time_s=time_s, margin=margin, min_launches=MIN_PAIRS, max_launches=MAX_PAIRS)


class Search:
    """A search over a range of revisions, the first of which is good and the last one bad."""

    def __init__(
        self,
        revisions: Sequence[Revision],
        state: State,
        *,
        measure: Measure,
        record: Callable[[Record], None],
        budget: Budget,
        listener: Listener,
    ) -> None:
        """`record` stores a record and adds it to `state`."""
        self._all = tuple(revisions)
        self._state = state
        self._measure = measure
        self._record = record
        self._budget = budget
        self._listener = listener
        self._ends = (self._all[0], self._all[-1])

    def run(self) -> Outcome:
        """Search until decided or until the time is used up."""
        self._compare_ends()
        while True:
            revisions = self._usable()
            posterior = posterior_of(
                self._times(revisions), len(revisions) - 1, margin=self._budget.margin
            )
            over = self._outcome(revisions, posterior)
            if over is not None:
                return over
            chosen = next_revision(posterior)
            middle = () if chosen is None else (revisions[chosen],)
            name = middle[0].short if middle else "both ends"
            self._listener(f"round {len(self._state.rounds) + 1}: {name}", posterior)
            self._round(middle)

    def _compare_ends(self) -> None:
        """Measure good and bad until the ordinary verdict; raise if they do not differ."""
        state, budget = self._state, self._budget
        pairs = len(state.rounds)
        analyzed = state.analyses[-1].launches if state.analyses else 0
        next_analysis = max(MIN_PAIRS, round(analyzed * _GROWTH), analyzed + 1)
        while not state.passed:
            last = pairs >= MIN_PAIRS and self._time_is_up()
            if pairs >= next_analysis or last:
                estimate = self._estimate()
                passed = _differ(estimate, budget)
                if pairs > analyzed:
                    analyzed = pairs
                    self._record(Analysis(launches=pairs, elapsed_s=state.elapsed_s, passed=passed))
                if not passed and estimate.verdict is Verdict.SAME:
                    raise NothingToDo(
                        "no difference between good and bad",
                        why=f"{_estimate_text(estimate)}: the same within "
                        f"{format_percent(budget.margin)}",
                        hint="check --good, --bad and --command, or lower --margin",
                    )
                if not passed and last:
                    raise Untrustworthy(
                        "good and bad are not shown to differ, so no revision can be found",
                        why=f"{_estimate_text(estimate)} after {pairs} pairs",
                        hint=_time_hint(estimate, state.elapsed_s),
                    )
                next_analysis = max(pairs + 1, round(pairs * _GROWTH))
                continue
            self._listener(f"pair {pairs + 1} of good and bad", None)
            self._round(())
            pairs = len(state.rounds)

    def _round(self, middle: Sequence[Revision]) -> None:
        good, bad = self._ends
        try:
            self._record(self._measure((good, *middle, bad), len(self._state.rounds)))
        except RevisionFailed as failure:
            if failure.commit in {good.commit, bad.commit}:
                side = "good" if failure.commit == good.commit else "bad"
                raise StepFailed(
                    f"the {side} revision {failure.commit[:10]} cannot be measured",
                    why=failure.why,
                    hint="check --command and --setup in a checkout of this revision",
                ) from failure
            self._record(Skipped(commit=failure.commit, why=failure.why))
            self._listener(f"skipped {failure.commit[:10]}: {failure.why}", None)

    def _usable(self) -> list[Revision]:
        return [one for one in self._all if one.commit not in self._state.skipped]

    def _times(self, revisions: Sequence[Revision]) -> list[dict[int, float]]:
        """Return the log times of the rounds; disturbed rounds are left out unless most are."""
        place = {one.commit: index for index, one in enumerate(revisions)}
        rounds = self._state.rounds
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

    def _time_is_up(self) -> bool:
        """Whether no further round fits the time; half of one may exceed it."""
        rounds = len(self._state.rounds)
        return rounds > 0 and self._state.elapsed_s * (1 + 0.5 / rounds) >= self._budget.time_s

    def _estimate(self) -> Estimate:
        """Estimate good against bad, from the rounds until the last analysis that was needed."""
        state, budget = self._state, self._budget
        points = [(one.launches, one.elapsed_s) for one in state.analyses]
        if not state.passed and (not points or points[-1][0] < len(state.rounds)):
            points.append((len(state.rounds), state.elapsed_s))
        pairs, elapsed_s = points[-1]
        good, bad = (one.commit for one in self._ends)
        blocks = [block for one in state.rounds[:pairs] for block in one.blocks]
        analyses = [
            InterimAnalysis(launches=number, fraction=min(0.999, max(1e-6, s / budget.time_s)))
            for number, s in points
        ]
        spent = Spent(elapsed_s=elapsed_s, launches=pairs)
        return make_estimate(pair_blocks(blocks, good, bad), analyses, budget, spent)

    def _outcome(self, revisions: Sequence[Revision], posterior: Posterior) -> Outcome | None:
        """Return the outcome if the search is over."""
        culprit = posterior.culprit
        chosen = candidates(posterior)
        ranges: tuple[tuple[str, str], ...] = ()
        effect = None
        ending: Ending
        if culprit is not None:
            chosen = [culprit]
            effect = effect_of(self._times(revisions), culprit)
            ending = "culprit"
        elif posterior.has_several and posterior.pair is not None:
            ranges = tuple(
                (revisions[low].commit, revisions[high].commit) for low, high in posterior.pair
            )
            ending = "several"
        elif posterior.has_none:
            chosen, ending = [], "no-change"
        elif self._time_is_up():
            ending = "remaining"
        else:
            return None
        return Outcome(
            ending=ending,
            revisions=tuple(revisions),
            posterior=posterior,
            candidates=tuple(
                one for k in chosen for one in self._between(revisions[k - 1], revisions[k])
            ),
            ranges=ranges,
            effect=effect,
            estimate=self._estimate(),
            skipped=tuple(Skipped(commit=c, why=why) for c, why in self._state.skipped.items()),
            rounds=len(self._state.rounds),
            elapsed_s=self._state.elapsed_s,
        )

    def _between(self, before: Revision, after: Revision) -> tuple[Revision, ...]:
        """Return a revision with the skipped ones directly before it."""
        return self._all[self._all.index(before) + 1 : self._all.index(after) + 1]


def _differ(estimate: Estimate, budget: Budget) -> bool:
    large = abs(math.log(estimate.speedup)) > math.log1p(budget.margin)
    return large and estimate.verdict in {Verdict.FASTER, Verdict.SLOWER}


def _estimate_text(estimate: Estimate) -> str:
    if estimate.interval is None:
        return "no confidence interval"
    low, high = 1.0 / estimate.interval.high - 1.0, 1.0 / estimate.interval.low - 1.0
    return (
        f"bad takes {format_percent(1.0 / estimate.speedup - 1.0, signed=True)} time "
        f"(95 % CI {format_percent(low, signed=True)} to {format_percent(high, signed=True)})"
    )


def _time_hint(estimate: Estimate, elapsed_s: float) -> str:
    """Return how much time an answer needs."""
    needed_s = estimate.time_needed_s
    if needed_s is None and estimate.time_needed_range_s is not None:
        needed_s = estimate.time_needed_range_s[1]
    if needed_s is None or needed_s <= elapsed_s:
        return "raise --time, or use revisions that differ more; measurements are kept"
    return (
        f"a verdict needs about {format_duration(needed_s * 1e9)} of measuring: raise --time; "
        "measurements are kept"
    )
