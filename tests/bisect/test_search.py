"""The search on simulated ranges: how often the right revision is named, and how often a wrong one."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from tests.bisect.simulated_range import QuietEnds, SimulatedRange, endings, named, step
from torchyard.bisect.model import Round, State
from torchyard.errors import NothingToDo, StepFailed, Untrustworthy


@pytest.mark.parametrize("size", [0.05, 0.2])
def test_the_change_is_located(size: float) -> None:
    results = endings(size, count=20)
    assert results["right"] >= 18, results
    assert results["wrong"] <= 1, results


def test_ranges_without_a_change_name_nobody() -> None:
    results = endings(0.0, count=20, time_s=60.0)
    assert results["right"] + results["wrong"] + results["several"] <= 1, results


def test_drift_between_rounds_does_not_matter() -> None:
    results = endings(0.05, count=10, round_sd=0.3)
    assert results["right"] >= 9, results


def test_noisy_revisions_between_quiet_ends_are_not_named() -> None:
    results = endings(0.05, count=20, kind=QuietEnds)
    assert results["wrong"] + results["several"] <= 1, results
    assert results["right"] >= 18, results


def test_several_changes_are_reported() -> None:
    levels = [math.log1p(0.1 * (index >= 20) + 0.1 * (index >= 40)) for index in range(65)]
    results = Counter[str]()
    for seed in range(10):
        outcome = SimulatedRange(levels=levels, seed=seed).search()
        results[outcome.ending] += 1
        if outcome.ending == "several":
            (low, high), (low2, high2) = (
                (int(first, 16), int(last, 16)) for first, last in outcome.ranges
            )
            assert low < 20 <= high
            assert low2 < 40 <= high2
    assert results["several"] >= 9, results


def test_a_small_change_after_a_huge_one_is_reported() -> None:
    levels = [3.0 * (index >= 30) + 0.05 * (index >= 50) for index in range(65)]
    results = Counter(
        SimulatedRange(levels=levels, seed=seed).search().ending for seed in range(10)
    )
    assert results["several"] >= 9, results


def test_revisions_that_fail_are_skipped() -> None:
    simulated = SimulatedRange(levels=step(30, 0.2), seed=1, broken=frozenset({28, 29, 32, 33, 48}))
    outcome = simulated.search()
    assert outcome.ending == "culprit"
    assert named(outcome) == [28, 29, 30]
    assert {int(one.commit, 16) for one in outcome.skipped} <= simulated.broken


def test_a_culprit_that_cannot_be_measured_is_among_the_candidates() -> None:
    outcome = SimulatedRange(levels=step(30, 0.2), seed=1, broken=frozenset({30})).search()
    assert named(outcome) == [30, 31]


@pytest.mark.parametrize(("broken", "side"), [(0, "good"), (64, "bad")])
def test_ends_that_fail_are_an_error(broken: int, side: str) -> None:
    simulated = SimulatedRange(levels=step(30, 0.2), seed=1, broken=frozenset({broken}))
    with pytest.raises(StepFailed, match=f"the {side} revision"):
        simulated.search()


def test_equal_ends_are_the_same() -> None:
    with pytest.raises(NothingToDo, match="no difference"):
        SimulatedRange(levels=step(30, 0.0), seed=1, noise_sd=0.001).search()


def test_undecided_ends_state_the_time_needed() -> None:
    simulated = SimulatedRange(levels=step(30, 0.0), seed=1, noise_sd=0.05)
    with pytest.raises(Untrustworthy) as error:
        simulated.search(time_s=30.0)
    assert "of measuring: raise --time" in error.value.hint
    assert simulated.runs == 30


def test_candidates_remain_when_the_time_is_used_up() -> None:
    outcome = SimulatedRange(levels=step(30, 0.2), seed=1).search(time_s=15.0)
    assert outcome.ending == "remaining"
    assert 30 in named(outcome)
    assert 1 < len(named(outcome)) < 64


@pytest.mark.parametrize("kept", [3, 5, 8, 12])
def test_an_interrupted_search_resumes(kept: int) -> None:
    class Interrupted(Exception):
        pass

    state = State()
    simulated = SimulatedRange(levels=step(30, 0.2), seed=1)

    def interrupt(*_: object) -> None:
        if len(state.rounds) == kept:
            raise Interrupted

    with pytest.raises(Interrupted):
        simulated.search(state=state, listener=interrupt)
    before: list[Round] = list(state.rounds)
    outcome = simulated.search(state=state)
    assert state.rounds[:kept] == before
    assert named(outcome) == [30]
    runs = simulated.runs
    assert simulated.search(state=state) == outcome
    assert simulated.runs == runs


def test_slow_runs_of_one_end_are_part_of_its_time() -> None:
    """A program that is often slow is slower: its runs are not outliers of the machine."""

    class OftenSlow(SimulatedRange):
        def log_time(self, index: int) -> float:
            slow = 0.4 if index >= 30 and self.chance.random() < 0.3 else 0.0
            return super().log_time(index) + slow

    for seed in range(4):
        simulated = OftenSlow(levels=step(30, 0.0), seed=seed)
        try:
            outcome = simulated.search(time_s=200.0)
        except NothingToDo:  # medians do not differ
            continue
        assert outcome.ending != "culprit" or named(outcome) == [30]
