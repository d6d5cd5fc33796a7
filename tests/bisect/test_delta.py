"""Delta debugging of settings on simulated programs: right sets, interactions, no wrong ones."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from tests.bisect.simulated_settings import SimulatedSettings, named, together
from torchyard.bisect.model import State
from torchyard.bisect.report import interact
from torchyard.errors import NothingToDo, StepFailed, Untrustworthy


@pytest.mark.parametrize("size", [0.2, -0.2])
def test_one_setting_of_many(size: float) -> None:
    for seed in range(8):
        chosen = random.Random(f"setting/{seed}").randrange(16)
        outcome = SimulatedSettings(
            count=16, log_time=together(chosen, size=size), seed=seed
        ).search()
        assert outcome.found
        assert named(outcome) == {chosen}
        assert outcome.effect is not None
        assert outcome.effect.low - 0.02 <= 1.0 + size <= outcome.effect.high + 0.02


@pytest.mark.parametrize("pair", [(0, 1), (0, 7), (3, 4), (2, 6)])
def test_settings_that_matter_only_together(pair: tuple[int, int]) -> None:
    outcome = SimulatedSettings(count=8, log_time=together(*pair, size=0.3), seed=1).search()
    assert outcome.found
    assert named(outcome) == set(pair)
    assert interact(outcome)
    for part in outcome.parts:
        assert part.alone is not None
        assert part.removed is not None
        assert part.alone.low <= 1.0 <= part.alone.high
        assert part.removed.low <= 1.3 <= part.removed.high


def test_settings_that_add_up_do_not_interact() -> None:
    def log_time(chosen: frozenset[int]) -> float:
        return 0.2 * (2 in chosen) + 0.2 * (5 in chosen)

    outcome = SimulatedSettings(count=8, log_time=log_time, seed=1).search()
    assert named(outcome) == {2, 5}
    assert not interact(outcome)


def test_small_effects_are_left_out() -> None:
    def log_time(chosen: frozenset[int]) -> float:
        return 0.3 * (2 in chosen) + 0.01 * (5 in chosen)

    assert named(SimulatedSettings(count=8, log_time=log_time, seed=1).search()) == {2}


def test_a_setting_that_hides_another_is_left_out() -> None:
    def log_time(chosen: frozenset[int]) -> float:
        return 0.4 * (1 in chosen) - 0.2 * (6 in chosen)

    outcome = SimulatedSettings(count=8, log_time=log_time, seed=1).search()
    assert named(outcome) == {1}
    assert outcome.effect is not None
    assert outcome.effect.low <= math.exp(0.4) <= outcome.effect.high


def test_equal_sides_name_nothing() -> None:
    results: Counter[str] = Counter()
    for seed in range(20):
        simulated = SimulatedSettings(count=8, log_time=lambda _: 0.0, seed=seed)
        try:
            simulated.search(time_s=60.0)
        except (NothingToDo, Untrustworthy):
            results["none"] += 1
    assert results["none"] >= 19


def test_sets_that_cannot_be_measured() -> None:
    unusable = frozenset({frozenset(range(4)), frozenset({2})})
    log_time = together(2, size=0.3)
    outcome = SimulatedSettings(count=8, log_time=log_time, seed=1, unusable=unusable).search()
    assert 2 in named(outcome)
    assert len(named(outcome)) == 2
    assert not outcome.found, "the second setting is not shown to matter"
    assert outcome.skipped
    everything = frozenset({frozenset(range(8))})
    with pytest.raises(StepFailed, match="bad settings"):
        SimulatedSettings(count=8, log_time=log_time, seed=1, unusable=everything).search()


@pytest.mark.parametrize("rates", [(0.0, 1.0), (0.05, 0.6)])
def test_failures_that_may_be_flaky(rates: tuple[float, float]) -> None:
    right = 0
    for seed in range(10):
        simulated = SimulatedSettings(
            count=8,
            log_time=lambda chosen: rates[chosen >= {1, 6}],
            seed=seed,
            failures=True,
        )
        outcome = simulated.search()
        right += outcome.found and named(outcome) == {1, 6}
    assert right >= 9


def test_the_time_limit_and_resuming() -> None:
    class Interrupted(Exception):
        pass

    state = State()
    simulated = SimulatedSettings(count=8, log_time=together(3, 6, size=0.3), seed=1)
    outcome = simulated.search(time_s=60.0, state=state)
    assert not outcome.complete
    assert named(outcome) >= {3, 6}
    rounds = list(state.rounds)

    def interrupt(*_: object) -> None:
        if len(state.rounds) == 60:
            raise Interrupted

    with pytest.raises(Interrupted):
        simulated.search(state=state, listener=interrupt)
    outcome = simulated.search(state=state)
    assert outcome.found
    assert named(outcome) == {3, 6}
    assert state.rounds[: len(rounds)] == rounds
    runs = simulated.runs
    assert simulated.search(state=state) == outcome
    assert simulated.runs == runs
