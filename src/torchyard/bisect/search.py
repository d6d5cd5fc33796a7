"""The search: compare both ends, then measure the revision that halves the posterior, until decided.

Independent of git and of programs: `measure` returns a round of some revisions. Simulations run the same
code.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchyard.bench.program_session import MAX_PAIRS, MIN_PAIRS
from torchyard.bisect.ends import EndsComparison, Experiment, log_values
from torchyard.bisect.failures import posterior_of_failures
from torchyard.bisect.model import (
    Ending,
    Outcome,
    Revision,
    RevisionFailed,
    Skipped,
)
from torchyard.bisect.posterior import (
    Posterior,
    candidates,
    effect_of,
    next_revision,
    posterior_of,
)
from torchyard.bisect.prior import differing, weights
from torchyard.core.study import Budget
from torchyard.errors import StepFailed


def search_budget(*, time_s: float, margin: float) -> Budget:
    """Return the budget of a search."""
    return Budget(time_s=time_s, margin=margin, min_launches=MIN_PAIRS, max_launches=MAX_PAIRS)


class Search:
    """A search over a range of revisions, the first of which is good and the last one bad."""

    def __init__(self, revisions: Sequence[Revision], experiment: Experiment) -> None:
        self._all = tuple(revisions)
        self._experiment = experiment
        self._state = experiment.state
        self._failures = experiment.failures
        self._ends = (self._all[0], self._all[-1])
        self._ends_comparison = EndsComparison(
            self._all[0].commit, self._all[-1].commit, experiment
        )

    def run(self) -> Outcome:
        """Search until decided or until the time is used up."""
        self._ends_comparison.run(self._pair)
        while True:
            revisions = self._usable()
            posterior = self._posterior(revisions)
            over = self._outcome(revisions, posterior)
            if over is not None:
                return over
            chosen = next_revision(posterior, self._weights(revisions))
            middle = () if chosen is None else (revisions[chosen],)
            name = middle[0].short if middle else "both ends"
            self._experiment.listener(f"round {len(self._state.rounds) + 1}: {name}", posterior)
            self._round(middle)

    def _pair(self, number: int) -> None:
        self._experiment.listener(f"pair {number} of good and bad", None)
        self._round(())

    def _round(self, middle: Sequence[Revision]) -> None:
        """Measure a round; failures do not depend on what the machine does, and need no ends."""
        good, bad = self._ends
        measured = middle if self._failures and middle else (good, *middle, bad)
        try:
            self._experiment.record(self._experiment.measure(measured, len(self._state.rounds)))
        except RevisionFailed as failure:
            if failure.commit in {good.commit, bad.commit}:
                side = "good" if failure.commit == good.commit else "bad"
                raise StepFailed(
                    f"the {side} {self._experiment.noun} {failure.commit[:10]} cannot be measured",
                    why=failure.why,
                    hint=f"check --command or --workload, and --setup, with this {self._experiment.noun}",
                ) from failure
            self._experiment.record(Skipped(commit=failure.commit, why=failure.why))
            self._experiment.listener(f"skipped {failure.commit[:10]}: {failure.why}", None)

    def _usable(self) -> list[Revision]:
        return [one for one in self._all if one.commit not in self._state.skipped]

    def _values(self, revisions: Sequence[Revision]) -> list[dict[int, float]]:
        place = {one.commit: index for index, one in enumerate(revisions)}
        return log_values(self._state.rounds, place)

    def _posterior(self, revisions: Sequence[Revision]) -> Posterior:
        values, last = self._values(revisions), len(revisions) - 1
        if self._failures:
            return posterior_of_failures(values, last)
        return posterior_of(values, last, margin=self._experiment.budget.margin)

    def _weights(self, revisions: Sequence[Revision]) -> list[float]:
        """Return the prior weights that choose the next revision; they do not decide."""
        if self._experiment.flat_prior:
            return []
        names = [one.commit for one in revisions]
        return weights(names, self._state.signatures, self._experiment.unlikely)

    def _signature(self, revisions: Sequence[Revision], culprit: int) -> tuple[str, ...] | None:
        """Return in what the signature of the culprit differs from the one before it."""
        signatures = self._state.signatures
        before, after = (signatures.get(revisions[k].commit) for k in (culprit - 1, culprit))
        return differing(before, after) if before and after else None

    def _outcome(self, revisions: Sequence[Revision], posterior: Posterior) -> Outcome | None:
        """Return the outcome if the search is over."""
        culprit = posterior.culprit
        chosen = candidates(posterior)
        ranges: tuple[tuple[str, str], ...] = ()
        effect = None
        ending: Ending
        if culprit is not None:
            chosen = [culprit]
            if not self._failures:
                effect = effect_of(self._values(revisions), culprit)
            ending = "culprit"
        elif posterior.has_several and posterior.pair is not None:
            ranges = tuple(
                (revisions[low].commit, revisions[high].commit) for low, high in posterior.pair
            )
            ending = "several"
        elif posterior.has_none:
            chosen, ending = [], "no-change"
        elif self._ends_comparison.time_is_up():
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
            estimate=None if self._failures else self._ends_comparison.estimate(),
            failed=self._ends_comparison.failed() if self._failures else None,
            skipped=tuple(Skipped(commit=c, why=why) for c, why in self._state.skipped.items()),
            signature=None if culprit is None else self._signature(revisions, culprit),
            rounds=len(self._state.rounds),
            disturbed=self._state.disturbed,
            elapsed_s=self._state.elapsed_s,
        )

    def _between(self, before: Revision, after: Revision) -> tuple[Revision, ...]:
        """Return a revision with the skipped ones directly before it."""
        return self._all[self._all.index(before) + 1 : self._all.index(after) + 1]
