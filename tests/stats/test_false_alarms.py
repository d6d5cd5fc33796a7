"""Rates of false alarms: intervals, excess, and p-values that are not uniform."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from torchyard.stats.suite import chance_of_at_least, excess_of_small, p_value_bins, wilson_interval

COUNTS = st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(COUNTS)
def test_wilson_agrees_with_scipy(counts: tuple[int, int]) -> None:
    count, total = counts
    interval = wilson_interval(count, total)
    expected = scipy.stats.binomtest(count, total).proportion_ci(method="wilson")
    assert interval.low == pytest.approx(float(expected.low), abs=1e-12)
    assert interval.high == pytest.approx(float(expected.high), abs=1e-12)


def test_nothing_counted_says_nothing() -> None:
    assert (wilson_interval(0, 0).low, wilson_interval(0, 0).high) == (0.0, 1.0)


@given(COUNTS, st.floats(0.001, 0.5))
def test_chance_of_so_many_agrees_with_scipy(counts: tuple[int, int], rate: float) -> None:
    count, total = counts
    expected = float(scipy.stats.binom.sf(count - 1, total, rate))
    # Both round in exponents of hundreds.
    assert chance_of_at_least(count, total, rate) == pytest.approx(expected, rel=1e-6, abs=1e-300)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60))
def test_excess_agrees_with_scipy(p_values: list[float]) -> None:
    excess, chance = excess_of_small(p_values)
    expected = scipy.stats.kstest(p_values, "uniform", alternative="greater", method="exact")
    assert excess == pytest.approx(max(0.0, float(expected.statistic)), abs=1e-12)
    assert chance == pytest.approx(float(expected.pvalue), rel=1e-6, abs=1e-9)


def test_p_values_near_one_are_no_excess() -> None:
    assert excess_of_small([1.0] * 50) == (0.0, 1.0)
    assert excess_of_small([]) == (0.0, 1.0)


def test_uniform_p_values_are_rejected_at_the_nominal_rate() -> None:
    rng = np.random.default_rng(5)
    repeats = 2000
    accused = sum(
        excess_of_small([float(p) for p in rng.random(40)])[1] <= 0.05 for _ in range(repeats)
    )
    assert accused / repeats == pytest.approx(0.05, abs=3 * (0.05 * 0.95 / repeats) ** 0.5)


def test_bins_hold_every_p_value_once() -> None:
    bins = p_value_bins([0.0, 0.099, 0.1, 0.55, 0.999, 1.0])
    assert bins == (2, 1, 0, 0, 0, 1, 0, 0, 0, 2)
    assert sum(p_value_bins([float(p) for p in np.linspace(0, 1, 77)])) == 77


@pytest.mark.parametrize(("count", "total"), [(-1, 3), (4, 3)])
def test_invalid_shares_are_refused(count: int, total: int) -> None:
    with pytest.raises(ValueError, match="is not a proportion"):
        wilson_interval(count, total)
    with pytest.raises(ValueError, match="is not a proportion"):
        chance_of_at_least(count, total, 0.05)


def test_a_rate_must_lie_between_0_and_1() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        chance_of_at_least(1, 3, 1.0)
