"""How often the search names the right and a wrong revision, on many simulated ranges.

With 40 ranges, three wrong results are not rare at a true rate of 1.5 %: rates need more ranges.
"""

from __future__ import annotations

import math
import random

import pytest

from tests.bisect.simulated_range import SimulatedRange, endings

COUNT = 120
FEW = 40


class NoisyBefore(SimulatedRange):
    """The change makes the program faster or slower, and ten times less noisy."""

    def log_time(self, index: int) -> float:
        self.runs += 1
        return self.levels[index] + self.chance.gauss(0.0, 0.003 if self.levels[index] else 0.03)


class OwnNoise(SimulatedRange):
    """Each revision has a noise of its own."""

    def log_time(self, index: int) -> float:
        self.runs += 1
        factor = math.exp(random.Random(f"{self.seed}/{index}").gauss(0.0, 0.9))
        return self.levels[index] + self.chance.gauss(0.0, 0.01 * factor)


class SlowFirstRun(SimulatedRange):
    """The first run of each revision is slower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.started: set[int] = set()

    def log_time(self, index: int) -> float:
        first = 0.0 if index in self.started else 0.1
        self.started.add(index)
        return super().log_time(index) + first


class TwoLevels(SimulatedRange):
    """Each run has one of two levels, which are 10 % apart."""

    def log_time(self, index: int) -> float:
        return super().log_time(index) + (0.1 if self.chance.random() < 0.5 else 0.0)


@pytest.mark.parametrize("size", [0.02, 0.05, 0.2])
def test_the_change_is_located(size: float) -> None:
    results = endings(size, count=COUNT)
    assert results["right"] >= 0.9 * COUNT, results
    assert results["wrong"] <= 0.05 * COUNT, results


@pytest.mark.parametrize("time_s", [60.0, 600.0])
def test_ranges_without_a_change_name_nobody(time_s: float) -> None:
    results = endings(0.0, count=COUNT, time_s=time_s)
    assert results["right"] + results["wrong"] + results["several"] <= 0.05 * COUNT, results


@pytest.mark.parametrize("size", [0.02, 0.2])
def test_the_change_is_located_among_disturbed_runs(size: float) -> None:
    results = endings(size, count=COUNT, slow_share=0.05)
    assert results["right"] >= 0.9 * COUNT, results
    assert results["wrong"] <= 0.05 * COUNT, results


def test_disturbed_ranges_without_a_change_name_nobody() -> None:
    results = endings(0.0, count=COUNT, slow_share=0.05)
    assert results["right"] + results["wrong"] + results["several"] <= 0.05 * COUNT, results


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (NoisyBefore, 0.05),
        (OwnNoise, 0.05),
        (SlowFirstRun, 0.2),
        (TwoLevels, 0.2),
    ],
)
def test_noise_that_the_model_does_not_have(kind: type[SimulatedRange], size: float) -> None:
    results = endings(size, count=FEW, kind=kind)
    assert results["wrong"] + results["several"] <= 0.05 * FEW, results
    assert results["right"] >= 0.85 * FEW, results
