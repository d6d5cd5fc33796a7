"""Delta debugging over settings: the smallest set of bad values that keeps the difference.

Starts from all bad values and removes as many as possible (ddmin, Zeller and Hildebrandt 2002), so that
settings that matter only together stay together. A set keeps the difference if it loses less than
a quarter of it against all bad values. That is a sequential test of pairs; test i of a search may
err with probability alpha / (i (i + 1)), which sums to alpha. Undecided tests keep their settings.
Independent of programs: `measure` returns a round of some sets. Tests are replayed from the stored rounds,
so a search resumes where it was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from torchyard.bench.outcome import Spent, make_estimate
from torchyard.bench.program_session import MIN_PAIRS
from torchyard.bisect.ends import EndsComparison, Experiment, log_values, pairs_of
from torchyard.bisect.failures import failed_runs, log_evidence
from torchyard.bisect.model import Revision, RevisionFailed, Skipped
from torchyard.bisect.posterior import Effect
from torchyard.core.comparison import Estimate
from torchyard.core.study import Budget
from torchyard.errors import StepFailed
from torchyard.stats.delta_debugging import minimize, share_of_alpha
from torchyard.stats.stopping import InterimAnalysis

LOSS_SHARE: Final = 0.25
"""Share of the difference that a set may lose and still keep it."""
MOST_PAIRS: Final = 60
"""Pairs of one test after which it stays undecided."""
CONFIRMING: Final = 8
"""Rounds of good and the smallest set at the end."""
_GROWTH: Final = 1.25

TestResult = Literal["keeps", "loses", "undecided", "unusable"]


@dataclass(frozen=True, kw_only=True)
class SetTest:
    """Test of one set; `loss` is what it loses of the log difference, with its interval."""

    result: TestResult
    loss: Effect | None = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """A setting of the smallest set."""

    index: int
    alone: Effect | None
    """Ratio to good with this bad value only; None if it was not measured."""
    removed: Effect | None
    """Ratio of the set to the set without this bad value."""
    needed: bool
    """Whether its removal is shown to lose the difference; otherwise this is undecided."""


@dataclass(frozen=True, kw_only=True)
class SettingsOutcome:
    """Result of a search over settings."""

    complete: bool
    """False: the time is used up; `parts` contain settings that were not examined."""
    parts: tuple[Part, ...]
    effect: Effect | None
    """Ratio of the smallest set to good."""
    estimate: Estimate | None
    failed: tuple[tuple[int, int], tuple[int, int]] | None
    tests: int
    skipped: tuple[Skipped, ...]
    rounds: int
    disturbed: int = 0
    elapsed_s: float

    @property
    def found(self) -> bool:
        """Whether the set, and each setting of it, is shown to matter."""
        return (
            self.complete
            and all(one.needed for one in self.parts)
            and (self.effect is None or not self.effect.low <= 1.0 <= self.effect.high)
        )


class _TimeUp(Exception):
    """No further round fits the time."""


def set_name(bits: int, count: int) -> str:
    """Return the name of a set of settings in blocks."""
    return f"{bits:0{(count + 3) // 4}x}"


class DeltaSearch:
    """A search over the settings that differ between good and bad."""

    def __init__(self, count: int, experiment: Experiment) -> None:
        """`count` settings differ."""
        self._count = count
        self._all = (1 << count) - 1
        self._experiment = experiment
        self._state = experiment.state
        self._budget = experiment.budget
        self._failures = experiment.failures
        self._tests: dict[int, SetTest] = {}
        self._current: tuple[int, ...] = tuple(range(count))
        self._ends = EndsComparison(self._name(0), self._name(self._all), experiment)

    def run(self) -> SettingsOutcome:
        """Search until the set is minimal or the time is used up."""
        self._ends.run(self._pair)
        self._difference = 0.0 if self._failures else -math.log(self._ends.estimate().speedup)
        self._limit = max(math.log1p(self._budget.margin), LOSS_SHARE * abs(self._difference))
        complete = True
        try:
            minimize(
                self._current,
                lambda indices: self._test(_bits(indices)).result == "keeps",
                self._smaller,
            )
            parts = self._parts()
            effect = None if self._failures else self._confirm()
        except _TimeUp:
            complete, effect = False, None
            parts = tuple(
                Part(index=one, alone=None, removed=None, needed=False) for one in self._current
            )
        return SettingsOutcome(
            complete=complete,
            parts=parts,
            effect=effect,
            estimate=None if self._failures else self._ends.estimate(),
            failed=self._ends.failed() if self._failures else None,
            tests=len(self._tests),
            skipped=tuple(Skipped(commit=c, why=why) for c, why in self._state.skipped.items()),
            rounds=len(self._state.rounds),
            disturbed=self._state.disturbed,
            elapsed_s=self._state.elapsed_s,
        )

    def _smaller(self, indices: tuple[int, ...]) -> None:
        self._current = indices

    def _test(self, bits: int) -> SetTest:
        if bits == self._all:
            return SetTest(result="keeps", loss=Effect(ratio=1.0, low=1.0, high=1.0))
        if bits not in self._tests:
            number = len(self._tests) + 1
            alpha = share_of_alpha(self._budget.alpha, number)
            run = self._test_failures if self._failures else self._test_values
            self._tests[bits] = run(bits, alpha)
        return self._tests[bits]

    def _test_values(self, bits: int, alpha: float) -> SetTest:
        """Measure pairs of all bad values and a set, until the interval excludes the limit."""
        analyses: list[InterimAnalysis] = []
        target = MIN_PAIRS
        while True:
            if not self._reach(bits, self._all, target):
                return SetTest(result="unusable")
            last = target >= MOST_PAIRS
            fraction = 1.0 if last else target / MOST_PAIRS
            analyses.append(InterimAnalysis(launches=target, fraction=fraction))
            ratio = self._ratio(bits, self._all, target, analyses, alpha)
            if ratio is not None:
                ends = (math.log(ratio.low), math.log(ratio.high))
                loss = max(ends), min(ends)
                if self._difference > 0.0:
                    loss = -ends[0], -ends[1]
                if loss[0] < self._limit:
                    return SetTest(result="keeps", loss=ratio)
                if loss[1] > self._limit:
                    return SetTest(result="loses", loss=ratio)
            if last:
                return SetTest(result="undecided", loss=ratio)
            target = min(MOST_PAIRS, max(target + 1, round(target * _GROWTH)))

    def _test_failures(self, bits: int, alpha: float) -> SetTest:
        """Run a set until it is shown to fail as often as bad, or as good (Wald 1945)."""
        good, bad = self._ends.failed()
        limit = math.log((1.0 - alpha) / alpha)
        for target in range(1, MOST_PAIRS + 1):
            if not self._reach(bits, bits, target):
                return SetTest(result="unusable")
            values = log_values(self._state.rounds, {self._name(bits): 0})
            runs = failed_runs([one for one in values if one][:target], 0)
            evidence = log_evidence(runs, good, bad)
            if abs(evidence) >= limit:
                return SetTest(result="keeps" if evidence > 0.0 else "loses")
        return SetTest(result="undecided")

    def _reach(self, bits: int, other: int, target: int) -> bool:
        """Measure until both sets are together in some number of rounds; False: unusable."""
        names = {self._name(bits), self._name(other)}
        while self._name(bits) not in self._state.skipped:
            rounds = len(self._rounds_with(names))
            if rounds >= target:
                return True
            if self._ends.time_is_up():
                raise _TimeUp
            what = f"test {len(self._tests) + 1}" if other else "confirmation"
            shown = f"{bits.bit_count()} of {self._count} settings"
            self._experiment.listener(f"{what}: {shown}, pair {rounds + 1}", None)
            self._round(tuple(names))
        return False

    def _rounds_with(self, names: set[str]) -> list[int]:
        return [
            number
            for number, one in enumerate(self._state.rounds)
            if names == {block.variant for block in one.blocks}
        ]

    def _ratio(
        self,
        bits: int,
        other: int,
        pairs: int,
        analyses: Sequence[InterimAnalysis],
        alpha: float,
    ) -> Effect | None:
        """Return the ratio of a set to another one, from their first pairs."""
        names = {self._name(bits), self._name(other)}
        numbers = self._rounds_with(names)[:pairs]
        blocks = [block for number in numbers for block in self._state.rounds[number].blocks]
        budget = Budget(
            alpha=alpha, margin=self._budget.margin, min_launches=MIN_PAIRS, max_launches=MOST_PAIRS
        )
        paired = pairs_of(blocks, self._name(bits), self._name(other))
        estimate = make_estimate(paired, analyses, budget, Spent())
        interval = estimate.interval
        if interval is None or interval.low <= 0.0:
            return None
        return Effect(ratio=estimate.speedup, low=interval.low, high=interval.high)

    def _parts(self) -> tuple[Part, ...]:
        """Return what each setting of the set does alone, and what is lost without it."""
        if len(self._current) == 1:
            return (Part(index=self._current[0], alone=None, removed=None, needed=True),)
        parts = []
        for index in self._current:
            without = self._test(_bits(i for i in self._current if i != index))
            alone = self._test(1 << index).loss
            parts.append(
                Part(
                    index=index,
                    alone=None if alone is None else _scaled(alone, self._difference),
                    removed=None if without.loss is None else _inverse(without.loss),
                    needed=without.result == "loses",
                )
            )
        return tuple(parts)

    def _confirm(self) -> Effect | None:
        """Return the effect of the set against good, from rounds of their own."""
        bits = _bits(self._current)
        if bits == self._all:
            estimate = self._ends.estimate()
            if estimate.interval is None:
                return None
            return _inverse(
                Effect(
                    ratio=estimate.speedup, low=estimate.interval.low, high=estimate.interval.high
                )
            )
        self._reach(bits, 0, CONFIRMING)
        final = [InterimAnalysis(launches=CONFIRMING, fraction=1.0)]
        return self._ratio(bits, 0, CONFIRMING, final, self._budget.alpha)

    def _pair(self, number: int) -> None:
        self._experiment.listener(f"pair {number} of good and bad", None)
        self._round((self._name(0), self._name(self._all)))

    def _round(self, names: Sequence[str]) -> None:
        revisions = [Revision(commit=name, subject="") for name in sorted(names)]
        try:
            self._experiment.record(self._experiment.measure(revisions, len(self._state.rounds)))
        except RevisionFailed as failure:
            if failure.commit in {self._name(0), self._name(self._all)}:
                side = "good" if failure.commit == self._name(0) else "bad"
                raise StepFailed(
                    f"the {side} settings cannot be measured",
                    why=failure.why,
                    hint="check --command or --workload, and --settings",
                ) from failure
            self._experiment.record(Skipped(commit=failure.commit, why=failure.why))

    def _name(self, bits: int) -> str:
        return set_name(bits, self._count)


def _bits(indices: Iterable[int]) -> int:
    return sum(1 << index for index in indices)


def _inverse(effect: Effect) -> Effect:
    return Effect(ratio=1.0 / effect.ratio, low=1.0 / effect.high, high=1.0 / effect.low)


def _scaled(effect: Effect, log: float) -> Effect:
    factor = math.exp(log)
    return Effect(ratio=effect.ratio * factor, low=effect.low * factor, high=effect.high * factor)
