"""One launch: distribution-free interval and sign test."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from torchyard.stats.distributions import median_interval, sign_test_p, two_counts_p
from torchyard.stats.estimate import sign_flip_p

PAIRS = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=60)


@pytest.mark.parametrize("size", range(1, 80))
def test_depth_agrees_with_the_binomial_distribution(size: int) -> None:
    found = median_interval(list(range(size)), 0.05)
    depth = int(scipy.stats.binom.ppf(0.025, size, 0.5))
    while depth > 0 and 2 * scipy.stats.binom.cdf(depth - 1, size, 0.5) > 0.05:
        depth -= 1
    assert found == (None if depth == 0 else (depth - 1, size - depth))


def test_six_pairs_are_the_fewest_at_95_percent() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.05) is None
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.05) == (1.0, 6.0)


@given(PAIRS)
def test_sign_test_agrees_with_scipy(pairs: list[float]) -> None:
    moved = [value or 1.0 for value in pairs]
    above = sum(value > 0 for value in moved)
    expected = scipy.stats.binomtest(above, len(moved)).pvalue
    assert sign_test_p(moved) == pytest.approx(expected, rel=1e-12)


@given(PAIRS, st.sampled_from([0.01, 0.05, 0.2]))
def test_interval_without_zero_means_a_small_p(pairs: list[float], alpha: float) -> None:
    ends = median_interval(pairs, alpha)
    if ends is not None and (ends[0] > 0 or ends[1] < 0):
        assert sign_test_p(pairs) <= alpha


@given(PAIRS)
def test_swapping_the_variants_mirrors_the_interval(pairs: list[float]) -> None:
    mirrored = [-value for value in pairs]
    ends, other = median_interval(pairs, 0.05), median_interval(mirrored, 0.05)
    if ends is None:
        assert other is None
    else:
        assert other == (-ends[1], -ends[0])
    assert sign_test_p(pairs) == sign_test_p(mirrored)


def test_all_ties_are_no_evidence() -> None:
    assert sign_test_p([0.0] * 20) == 1.0


def test_many_pairs_do_not_overflow() -> None:
    assert sign_test_p([1.0] * 3000) == 0.0
    assert sign_test_p([1.0, -1.0] * 1500) == 1.0


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy", "exponential"])
def test_interval_covers_the_median_whatever_the_noise(draw: str) -> None:
    rng = np.random.default_rng(8)
    truth = {"normal": 0.0, "standard_cauchy": 0.0, "exponential": float(np.log(2))}[draw]
    covered = 0
    for _ in range(1000):
        ends = median_interval(list(getattr(rng, draw)(size=25)), 0.05)
        assert ends is not None
        covered += ends[0] <= truth <= ends[1]
    assert covered >= 940


@given(st.integers(0, 60), st.integers(0, 60))
def test_two_counts_agree_with_scipy(one: int, other: int) -> None:
    expected = scipy.stats.binomtest(one, one + other).pvalue if one + other else 1.0
    assert two_counts_p(one, other) == pytest.approx(expected, rel=1e-12)


def test_sign_flips_find_asymmetry_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    p_values = [sign_flip_p(rng.standard_t(2.0, 40).tolist()) for _ in range(400)]
    assert np.mean(np.asarray(p_values) <= 0.05) <= 0.05 + 3 * 0.011
    assert sign_flip_p([-0.3] * 9 + [0.001, -0.001] * 10) < 0.01
    assert sign_flip_p([-0.3] * 9 + [0.3] * 9) == 1.0
    assert sign_flip_p([]) == 1.0
    assert sign_flip_p([1e-12] * 30) == 1.0
    many = rng.normal(0.0, 1.0, 5000)
    assert sign_flip_p((many + 0.1).tolist()) < 1e-6
    assert sign_flip_p(many.tolist()) == pytest.approx(
        scipy.stats.ttest_1samp(many, 0.0).pvalue, abs=0.01
    )
