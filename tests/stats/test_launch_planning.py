"""Planning: launches for a precision, detectable effects, pairs per launch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from torchyard.stats.stopping import (
    half_width,
    launches_needed,
    minimum_detectable,
    pairs_per_launch,
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
    found = scipy.stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)


def test_pairs_follow_costs_and_spreads() -> None:
    def pairs(pair_sd: float, launch_sd: float, launch_cost_s: float = 5.0) -> int:
        return pairs_per_launch(
            pair_sd=pair_sd, launch_sd=launch_sd, launch_cost_s=launch_cost_s, pair_cost_s=0.2
        )

    assert pairs(0.02, 0.02) == math.ceil(math.sqrt(25 * math.pi / 2))
    assert pairs(0.04, 0.02) == math.ceil(2 * math.sqrt(25 * math.pi / 2))
    assert pairs(0.02, 0.02, 20.0) == math.ceil(math.sqrt(100 * math.pi / 2))


def test_pairs_are_clamped() -> None:
    costs: Any = {"launch_cost_s": 5.0, "pair_cost_s": 0.2}
    assert pairs_per_launch(pair_sd=0.001, launch_sd=0.05, **costs) == 6
    assert pairs_per_launch(pair_sd=0.02, launch_sd=0.0, **costs) == 200
    assert pairs_per_launch(pair_sd=0.0, launch_sd=0.0, **costs) == 6
    assert pairs_per_launch(pair_sd=0.02, launch_sd=1e-9, at_most=50, **costs) == 50
    assert pairs_per_launch(pair_sd=0.001, launch_sd=0.05, at_least=10, **costs) == 10
    assert pairs_per_launch(pair_sd=0.1, launch_sd=0.1, launch_cost_s=0.0, pair_cost_s=1.0) == 6


def test_what_pairs_add_to_the_launches_is_taken_off() -> None:
    arguments: Any = {"pair_sd": 0.02, "launch_sd": 0.02, "launch_cost_s": 5.0, "pair_cost_s": 0.2}
    plain = pairs_per_launch(**arguments)
    cleaned = pairs_per_launch(**arguments, pairs_so_far=4)
    assert cleaned > plain
    assert pairs_per_launch(**arguments, pairs_so_far=1) == 200


def test_the_allocation_is_near_the_best_one() -> None:
    pair_sd, launch_sd, launch_cost_s, pair_cost_s = 0.03, 0.012, 4.0, 0.2

    def variance_per_second(pairs: int) -> float:
        spread = launch_sd**2 + math.pi / 2 * pair_sd**2 / pairs
        return spread * (launch_cost_s + pairs * pair_cost_s)

    best = min(range(1, 500), key=variance_per_second)
    chosen = pairs_per_launch(
        pair_sd=pair_sd, launch_sd=launch_sd, launch_cost_s=launch_cost_s, pair_cost_s=pair_cost_s
    )
    assert abs(chosen - best) <= 1


@pytest.mark.parametrize(("launch_cost_s", "pair_cost_s"), [(1.0, 0.0), (-1.0, 0.1)])
def test_invalid_costs_are_refused(launch_cost_s: float, pair_cost_s: float) -> None:
    with pytest.raises(ValueError, match="costs"):
        pairs_per_launch(
            pair_sd=0.1, launch_sd=0.1, launch_cost_s=launch_cost_s, pair_cost_s=pair_cost_s
        )
