"""From pairs to launches: medians, spreads, and invalid data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.errors import Untrustworthy
from torchyard.stats.pairs import (
    launch_effects,
    launch_sd,
    pair_floor,
    pair_sd,
)

LOGS = st.floats(-2.0, 2.0)


@given(st.lists(st.lists(LOGS, max_size=9), max_size=9))
def test_a_launch_is_the_median_of_its_pairs(launches: list[list[float]]) -> None:
    expected = [np.median(pairs) for pairs in launches if pairs]
    assert launch_effects(launches) == pytest.approx(expected, abs=1e-15)


def test_spread_needs_two_launches() -> None:
    assert launch_sd(np.asarray([])) is None
    assert launch_sd(np.asarray([0.1])) is None
    assert launch_sd(np.asarray([0.0, 0.2])) == pytest.approx(math.sqrt(0.02))


def test_pair_sd_finds_the_noise_and_not_the_launches() -> None:
    rng = np.random.default_rng(3)
    launches = [list(rng.normal(centre, 0.02, 40)) for centre in rng.normal(0.0, 0.3, 50)]
    assert pair_sd(launches) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(("pairs", "rel"), [(2, 0.05), (3, 0.05), (4, 0.1), (6, 0.05), (30, 0.05)])
def test_pair_sd_of_small_launches_is_not_biased(pairs: int, rel: float) -> None:
    rng = np.random.default_rng(4)
    launches = [list(rng.normal(0.0, 0.02, pairs)) for _ in range(6000 // pairs)]
    assert pair_sd(launches) == pytest.approx(0.02, rel=rel)


@pytest.mark.parametrize("pairs", [3, 6, 9, 20])
def test_pair_floor_is_at_least_the_spread_of_medians_of_pairs(pairs: int) -> None:
    rng = np.random.default_rng(5)
    true_sd = float(np.std(np.median(rng.normal(0.0, 0.02, (20_000, pairs)), axis=1)))
    floors = [pair_floor(rng.normal(0.0, 0.02, (20, pairs)).tolist()) for _ in range(40)]
    assert true_sd <= float(np.mean(floors)) <= 1.25 * true_sd


def test_pair_floor_sees_two_modes_that_the_median_deviation_does_not() -> None:
    rng = np.random.default_rng(6)
    drawn = 0.3 * (rng.random((20_000, 6)) < 0.3) + rng.normal(0.0, 0.001, (20_000, 6))
    true_sd = float(np.std(np.median(drawn, axis=1)))
    launches = drawn[:30].tolist()
    found = pair_sd(launches)
    assert found is not None
    assert math.sqrt(math.pi / 2 / 6) * found < 0.1 * true_sd
    assert pair_floor(launches) == pytest.approx(true_sd, rel=0.35)


def test_single_pairs_imply_nothing() -> None:
    assert pair_floor([[0.1], [0.2], []]) == 0.0
    assert pair_floor([]) == 0.0


def test_pair_sd_ignores_preemptions() -> None:
    rng = np.random.default_rng(5)
    pairs = rng.normal(0.0, 0.02, 200)
    pairs[::10] += 3.0
    found = pair_sd([list(pairs)])
    assert found is not None
    assert found < 0.03


def test_pair_sd_is_unknown_without_two_pairs_in_a_launch() -> None:
    assert pair_sd([]) is None
    assert pair_sd([[0.1], [], [0.2]]) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_refused_by_place(bad: float) -> None:
    with pytest.raises(Untrustworthy, match="launch 1, pair 2") as caught:
        launch_effects([[0.0], [0.1, 0.2, bad, 0.1]])
    assert caught.value.hint
    assert str(bad) in caught.value.what
