"""The model of launches with a prior on their spread: exactness, monotonicity, limits, and a single launch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from torchyard.stats.distributions import median_interval, sign_test_p, two_counts_p
from torchyard.stats.estimate import sign_flip_p
from torchyard.stats.launch_model import (
    LaunchSummary,
    draw_spreads,
    effective_degrees,
    half_width,
    p_values,
    two_sided_normal,
    typical_spread,
)

SUMMARIES = st.builds(
    LaunchSummary,
    launches=st.integers(2, 40),
    spread=st.floats(1e-6, 2.0),
    pair_variance=st.sampled_from([0.0, 1e-6, 1e-3]),
)


def test_the_normal_tail_is_accurate_far_out() -> None:
    sizes = np.linspace(0.0, 30.0, 301)
    assert two_sided_normal(sizes) == pytest.approx(2.0 * scipy.stats.norm.sf(sizes), rel=3e-7)


@given(SUMMARIES, st.sampled_from([0.2, 0.05, 0.005, 1e-5]))
def test_the_half_width_is_where_the_p_value_equals_the_level(
    summary: LaunchSummary, level: float
) -> None:
    width = half_width(summary, level)
    if math.isinf(width):
        return
    means = np.asarray([width * (1 - 1e-5), width * (1 + 1e-5)])
    spreads = np.full(2, summary.spread)
    below, above = p_values(means, spreads, summary.launches, pair_variance=summary.pair_variance)
    assert above <= level * (1 + 1e-6)
    assert below >= level * (1 - 1e-6)


@given(SUMMARIES)
def test_p_falls_with_the_mean(summary: LaunchSummary) -> None:
    means = np.linspace(0.0, 3.0, 50)
    ps = p_values(
        means, np.full(50, summary.spread), summary.launches, pair_variance=summary.pair_variance
    )
    assert ps[0] == pytest.approx(1.0, abs=1e-6)
    assert np.all(np.diff(ps) <= 1e-12)


@pytest.mark.parametrize("launches", [4, 6, 12])
def test_levels_are_exact_on_average_over_the_prior(launches: int) -> None:
    rng = np.random.default_rng(launches)
    repeats = 40_000
    drawn = rng.standard_normal((repeats, launches)) * draw_spreads(rng, repeats)[:, np.newaxis]
    ps = p_values(drawn.mean(axis=1), drawn.std(axis=1, ddof=1), launches, coarse=True)
    for level in (0.01, 0.05, 0.2):
        share = float(np.mean(ps < level))
        assert share <= level + 3.0 * math.sqrt(level / repeats)
        # The share that is reserved for modes makes few launches conservative.
        least = 0.5 if launches == 4 else 0.85
        assert share >= least * level - 3.0 * math.sqrt(level / repeats)


@pytest.mark.parametrize("apart", [0.12, 0.25, 0.5])
@pytest.mark.parametrize("launches", [2, 3, 4])
def test_launches_that_are_all_of_one_mode_are_rarely_believed(apart: float, launches: int) -> None:
    """Each launch is `apart` faster or slower with a probability of 1/4 each."""
    rng = np.random.default_rng(1)
    modes = rng.integers(0, 2, (2, 4000, launches))
    drawn = apart * (modes[0] - modes[1]) + rng.normal(0.0, 0.004, (4000, launches))
    ps = p_values(drawn.mean(axis=1), drawn.std(axis=1, ddof=1), launches)
    assert np.mean(ps < 0.005) <= 0.05
    assert np.mean(ps < 0.0375) <= 0.08 or launches == 2


def test_degrees_of_freedom_approach_those_of_student() -> None:
    for launches in (8, 20, 60):
        degrees = effective_degrees(LaunchSummary(launches=launches, spread=0.05), 0.05)
        assert degrees == pytest.approx(launches - 1, rel=0.15)


def test_the_typical_spread_approaches_the_observed_one() -> None:
    assert typical_spread() == 0.012
    assert typical_spread(LaunchSummary(launches=40, spread=0.05)) == pytest.approx(0.05, rel=0.05)
    noisy_pairs = LaunchSummary(launches=40, spread=0.05, pair_variance=0.05**2)
    assert typical_spread(noisy_pairs) < 0.02


def test_levels_of_zero_and_one() -> None:
    summary = LaunchSummary(launches=5, spread=0.01)
    assert half_width(summary, 0.0) == math.inf
    assert half_width(summary, 1.0) == 0.0


@pytest.mark.parametrize("launches", [2, 3, 6, 20])
def test_launches_that_differ_by_more_than_the_grid_decide_nothing(launches: int) -> None:
    """A spread far beyond the grid gives intervals as wide as Student's, not the end of the grid."""
    for spread in (0.3, 3.0, 300.0):
        width = half_width(LaunchSummary(launches=launches, spread=spread), 0.05)
        student = scipy.stats.t.ppf(0.975, launches - 1) * spread / math.sqrt(launches)
        assert 0.25 * student < width < 2.0 * student
    means, spreads = np.asarray([50.0, 0.05]), np.asarray([500.0, 0.5])
    far, near = p_values(means, spreads, launches)
    assert far == pytest.approx(near, rel=1e-9)
    assert near > 0.2


PAIRS = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=60)


@pytest.mark.parametrize("size", range(1, 80))
def test_depth_agrees_with_the_binomial_distribution(size: int) -> None:
    interval = median_interval(list(range(size)), 0.05)
    depth = int(scipy.stats.binom.ppf(0.025, size, 0.5))
    while depth > 0 and 2 * scipy.stats.binom.cdf(depth - 1, size, 0.5) > 0.05:
        depth -= 1
    assert interval == (None if depth == 0 else (depth - 1, size - depth))


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
