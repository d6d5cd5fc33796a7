"""Planning: launches for a precision, detectable effects, pairs per launch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from torchyard.core.comparison import Verdict
from torchyard.core.study import Budget
from torchyard.stats.estimate import estimate
from torchyard.stats.launch_model import LaunchSummary
from torchyard.stats.stopping import (
    chance_of_verdict,
    half_width,
    launches_needed,
    minimum_detectable,
)


@given(sd=st.floats(1e-5, 0.2), goal=st.floats(1e-3, 0.1), alpha=st.sampled_from([0.05, 0.01]))
def test_launches_needed_is_the_smallest_that_is_enough(
    sd: float, goal: float, alpha: float
) -> None:
    needed = launches_needed(sd, goal, alpha=alpha)
    assert needed is not None
    assert half_width(sd, needed, alpha=alpha) <= goal
    if needed > 2:
        assert half_width(sd, needed - 1, alpha=alpha) > goal


def test_known_numbers_of_launches() -> None:
    # z-based: (1.96 * 3)**2 = 35; Student adds a few.
    assert launches_needed(0.03, 0.01) == 38
    assert launches_needed(0.01, 0.01) == 7
    assert launches_needed(0.01, 0.01, at_least=12) == 12
    assert launches_needed(0.0, 0.01) == 2


def test_goals_that_can_not_be_reached() -> None:
    assert launches_needed(0.01, 0.0) is None
    assert launches_needed(0.01, 1e-9) is None


@pytest.mark.parametrize("launches", [2, 3, 10, 60])
def test_minimum_detectable_is_the_formula(launches: int) -> None:
    quantiles = scipy.stats.t.ppf(0.975, launches - 1) + scipy.stats.t.ppf(0.8, launches - 1)
    expected = quantiles * 0.02 / math.sqrt(launches)
    assert minimum_detectable(0.02, launches) == pytest.approx(expected, rel=1e-9)


def test_minimum_detectable_needs_two_launches() -> None:
    assert minimum_detectable(0.02, 1) is None


def test_minimum_detectable_is_found_in_four_of_five_cases() -> None:
    rng = np.random.default_rng(11)
    launches, sd = 12, 0.02
    effect = minimum_detectable(sd, launches)
    assert effect is not None
    drawn = rng.normal(effect, sd, (4000, launches))
    significant = scipy.stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05
    assert np.mean(significant) == pytest.approx(0.8, abs=0.03)


def summary(spread: float, launches: int) -> LaunchSummary:
    return LaunchSummary(launches=launches, spread=spread)


@pytest.mark.parametrize("effect", [0.0, 0.01, 0.03])
def test_the_chance_of_a_verdict_is_what_a_simulation_finds(effect: float) -> None:
    """Simulate continuations of four launches up to twelve."""
    rng = np.random.default_rng(5)
    sd, most, margin = 0.015, 12, 0.01
    first = np.asarray([effect - sd, effect + sd / 2, effect, effect + sd / 2])
    predicted = chance_of_verdict(effect, summary(float(first.std(ddof=1)), 4), most, margin=margin)
    verdicts = 0
    for _ in range(300):
        theta = rng.normal(effect, sd / 2.0)  # what four launches say about the truth
        values = np.concatenate([first, rng.normal(theta, sd, most - 4)])
        answer = estimate([[float(v)] for v in values], looks=(), budget=Budget(margin=margin))
        verdicts += answer.verdict is not Verdict.UNDECIDED
    assert predicted == pytest.approx(verdicts / 300, abs=0.15)


def test_no_verdict_is_expected_from_launches_that_differ_widely() -> None:
    assert chance_of_verdict(0.001, summary(0.2, 4), 8, margin=0.01) < 0.05
    assert chance_of_verdict(0.7, summary(0.01, 4), 8, margin=0.01) > 0.99
    assert chance_of_verdict(0.7, summary(0.01, 4), 4, margin=0.01) == 1.0
    assert chance_of_verdict(0.001, summary(0.2, 4), 4, margin=0.01) == 0.0
