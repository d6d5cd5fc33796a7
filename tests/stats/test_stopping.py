"""Boundaries and p-values of interim analyses: error spending, exactness, invalid input."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.stats.stopping import PATHS, InterimAnalysis, boundaries, cumulative_alpha, p_value


def analyses_at(*counts: int, last_fraction: float = 1.0) -> list[InterimAnalysis]:
    most = counts[-1]
    return [InterimAnalysis(launches=n, fraction=last_fraction * n / most) for n in counts]


def crossings(looks: list[InterimAnalysis], alpha: float, repeats: int, seed: int) -> np.ndarray:
    """Share of fresh standard normal comparisons that crossed by each look."""
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((repeats, looks[-1].launches))
    crossed = np.zeros(repeats, dtype=bool)
    shares = []
    for look, limit in zip(looks, boundaries(looks, alpha), strict=True):
        seen = drawn[:, : look.launches]
        error = seen.std(axis=1, ddof=1) / math.sqrt(look.launches)
        crossed |= np.abs(seen.mean(axis=1) / error) > limit
        shares.append(crossed.mean())
    return np.asarray(shares)


@pytest.mark.parametrize("launches", [2, 3, 7, 40])
@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.001])
def test_a_single_analysis_is_the_plain_t_test(launches: int, alpha: float) -> None:
    look = [InterimAnalysis(launches=launches, fraction=1.0)]
    limit = boundaries(look, alpha)[0]
    assert limit == pytest.approx(scipy.stats.t.isf(alpha / 2, launches - 1), rel=1e-9)
    for statistic in (-8.0, 0.0, 0.4, 1.9, 60.0):
        expected = 2 * scipy.stats.t.sf(abs(statistic), launches - 1)
        assert p_value(look, [statistic], alpha) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "counts",
    [(3, 6), (3, 4, 5, 6, 7, 8), (5, 10, 15, 20), tuple(range(3, 41))],
    ids=["two", "six", "four", "thirty-eight"],
)
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_all_analyses_together_spend_at_most_alpha(counts: tuple[int, ...], alpha: float) -> None:
    looks = analyses_at(*counts)
    repeats = 40_000
    shares = crossings(looks, alpha, repeats, seed=99)
    for look, share in zip(looks, shares, strict=True):
        allowed = cumulative_alpha(alpha, look.fraction)
        # Three standard errors of this simulation and of the one behind the boundaries.
        slack = 3.0 * math.sqrt(allowed * (1 / repeats + 1 / PATHS)) + 3.0 / repeats
        assert share <= allowed + slack
    assert shares[-1] == pytest.approx(alpha, rel=0.1)


def test_spending_follows_the_cube_of_the_time() -> None:
    assert cumulative_alpha(0.05, 0.0) == 0.0
    assert cumulative_alpha(0.05, 0.5) == pytest.approx(0.05 / 8)
    assert cumulative_alpha(0.05, 1.0) == 0.05
    assert cumulative_alpha(0.05, 1.7) == 0.05


def test_boundaries_fall_and_stay_above_the_plain_one() -> None:
    looks = analyses_at(*range(3, 61))
    limits = boundaries(looks, 0.05)
    for before, after in itertools.pairwise(limits):
        assert after <= before * 1.03
    for look, limit in zip(looks, limits, strict=True):
        assert limit >= scipy.stats.t.isf(0.025, look.launches - 1)


def test_earlier_boundaries_do_not_depend_on_later_analyses() -> None:
    looks = analyses_at(*range(3, 31))
    limits = boundaries(looks, 0.05)
    for count in range(2, len(looks)):
        assert boundaries(looks[:count], 0.05) == limits[:count]


def test_a_first_analysis_at_fraction_zero_cannot_be_crossed() -> None:
    look = [InterimAnalysis(launches=5, fraction=0.0)]
    assert boundaries(look, 0.05) == (math.inf,)
    assert p_value(look, [1e6], 0.05) == 1.0


def test_a_second_analysis_of_the_same_launches_when_time_is_up() -> None:
    looks = [InterimAnalysis(launches=6, fraction=0.5), InterimAnalysis(launches=6, fraction=1.0)]
    early, late = boundaries(looks, 0.05)
    assert early == pytest.approx(scipy.stats.t.isf(0.05 / 16, 5), rel=1e-9)
    # The same statistic: crossing late means exceeding the plain boundary.
    assert late == pytest.approx(scipy.stats.t.isf(0.025, 5), rel=0.02)


def test_a_fraction_that_does_not_grow_spends_nothing_new() -> None:
    looks = [InterimAnalysis(launches=n, fraction=1.0) for n in (5, 6)]
    first, second = boundaries(looks, 0.05)
    assert first == pytest.approx(scipy.stats.t.isf(0.025, 4), rel=1e-9)
    assert second > 5.0


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(2, 25), min_size=2, max_size=6).map(sorted),
    sizes=st.tuples(st.floats(0, 60), st.floats(0, 60)),
    last_fraction=st.sampled_from([0.4, 1.0]),
)
def test_p_falls_with_the_statistic_and_agrees_with_the_boundary(
    counts: list[int], sizes: tuple[float, float], last_fraction: float
) -> None:
    looks = analyses_at(*counts, last_fraction=last_fraction)
    limit = boundaries(looks, 0.05)[-1]
    earlier = [0.0] * (len(looks) - 1)
    small, large = sorted(sizes)
    p_small = p_value(looks, [*earlier, small], 0.05)
    p_large = p_value(looks, [*earlier, -large], 0.05)
    assert 0.0 <= p_large <= p_small <= 1.0
    for size, p in ((small, p_small), (large, p_large)):
        assert (p <= 0.05) if size > limit else (p >= 0.05)


def test_p_counts_from_the_first_crossing() -> None:
    looks = analyses_at(4, 8, 12)
    limits = boundaries(looks, 0.05)
    early = p_value(looks[:2], [0.0, limits[1] * 1.2], 0.05)
    later = p_value(looks, [0.0, limits[1] * 1.2, limits[2] * 1.01], 0.05)
    assert later == early <= cumulative_alpha(0.05, looks[1].fraction)
    # Crossed once and no longer: what counts is the look at which one stopped.
    assert p_value(looks, [0.0, limits[1] * 1.2, limits[2] * 0.9], 0.05) >= 0.05


def test_p_is_uniform_enough_under_the_stopping_rule() -> None:
    looks = analyses_at(3, 5, 7, 9, 11)
    limits = boundaries(looks, 0.05)
    rng = np.random.default_rng(17)
    found = []
    for _ in range(2500):
        drawn = rng.standard_normal(11)
        statistics: list[float] = []
        for look, limit in zip(looks, limits, strict=True):
            seen = drawn[: look.launches]
            statistics.append(seen.mean() / (seen.std(ddof=1) / math.sqrt(look.launches)))
            if abs(statistics[-1]) > limit:
                break
        found.append(p_value(looks[: len(statistics)], statistics, 0.05))
    for level in (0.01, 0.03, 0.05, 0.2, 0.5):
        share = np.mean(np.asarray(found) <= level)
        assert share <= level + 3 * math.sqrt(level * (1 - level) / 2500)
        assert share >= 0.6 * level


def test_p_goes_on_falling_below_what_paths_can_show() -> None:
    looks = analyses_at(10, 20)
    values = [p_value(looks, [0.0, size], 0.05) for size in (4.0, 8.0, 16.0)]
    spent = cumulative_alpha(0.05, 0.5)
    assert values[0] > values[1] > values[2] > spent
    first = p_value(looks[:1], [40.0], 0.05)
    assert first == pytest.approx(2 * scipy.stats.t.sf(40.0, 9), rel=1e-9)


def test_sixty_analyses_are_fast() -> None:
    boundaries(analyses_at(*range(3, 61)), 0.05)  # draws the paths, once per process
    started = time.process_time()
    looks = [InterimAnalysis(launches=n, fraction=(n / 60) ** 1.1) for n in range(3, 61)]
    for count in range(1, len(looks) + 1):
        p_value(looks[:count], [1.0] * count, 0.05)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    "looks",
    [
        [],
        [InterimAnalysis(launches=1, fraction=0.5)],
        [InterimAnalysis(launches=5, fraction=0.5), InterimAnalysis(launches=4, fraction=1.0)],
        [InterimAnalysis(launches=5, fraction=0.5), InterimAnalysis(launches=6, fraction=0.4)],
        [InterimAnalysis(launches=5, fraction=math.nan)],
        [InterimAnalysis(launches=5, fraction=-0.1)],
    ],
)
def test_invalid_analyses_are_refused(looks: list[InterimAnalysis]) -> None:
    with pytest.raises(ValueError, match="analys"):
        boundaries(looks, 0.05)


def test_invalid_alpha_and_statistics_are_refused() -> None:
    looks = analyses_at(3, 6)
    with pytest.raises(ValueError, match="alpha"):
        boundaries(looks, 0.0)
    with pytest.raises(ValueError, match="1 statistics for 2 analyses"):
        p_value(looks, [1.0], 0.05)
