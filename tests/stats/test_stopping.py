"""Levels and p-values of interim analyses: error spending, exactness, invalid input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.stats.launch_model import draw_spreads, p_values
from torchyard.stats.stopping import (
    PATHS,
    InterimAnalysis,
    cumulative_alpha,
    interval_level,
    nominal_levels,
    p_value,
)


def analyses_at(*counts: int, last_fraction: float = 1.0) -> list[InterimAnalysis]:
    most = counts[-1]
    return [InterimAnalysis(launches=n, fraction=last_fraction * n / most) for n in counts]


def crossings(looks: list[InterimAnalysis], alpha: float, repeats: int, seed: int) -> np.ndarray:
    """Share of fresh comparisons, with spreads from the prior, that crossed by each look."""
    rng = np.random.default_rng(seed)
    spreads = draw_spreads(rng, repeats)
    drawn = rng.standard_normal((repeats, looks[-1].launches)) * spreads[:, np.newaxis]
    crossed = np.zeros(repeats, dtype=bool)
    shares = []
    for look, level in zip(looks, nominal_levels(looks, alpha), strict=True):
        seen = drawn[:, : look.launches]
        ps = p_values(seen.mean(axis=1), seen.std(axis=1, ddof=1), look.launches, coarse=True)
        crossed |= ps < level
        shares.append(crossed.mean())
    return np.asarray(shares)


@pytest.mark.parametrize("launches", [4, 7, 40])
@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.001])
def test_a_single_final_analysis_uses_the_nominal_p_value(launches: int, alpha: float) -> None:
    look = [InterimAnalysis(launches=launches, fraction=1.0)]
    assert nominal_levels(look, alpha) == (alpha,)
    for nominal in (0.9, 0.06, 1e-12):
        assert p_value(look, [nominal], alpha) == pytest.approx(nominal, rel=1e-9)


@pytest.mark.parametrize("fraction", [0.01, 0.5, 1.0])
def test_two_launches_spend_a_tenth_of_alpha_at_any_time(fraction: float) -> None:
    look = [InterimAnalysis(launches=2, fraction=fraction)]
    assert nominal_levels(look, 0.05)[0] == pytest.approx(0.005)
    assert p_value(look, [0.0049], 0.05) <= 0.005
    assert p_value(look, [0.0051], 0.05) >= 0.05


@pytest.mark.parametrize(
    "counts",
    [(3, 6), (2, 3, 4, 5, 6, 7, 8), (5, 10, 15, 20), tuple(range(2, 25))],
    ids=["two", "seven", "four", "many"],
)
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_all_analyses_together_spend_at_most_alpha(counts: tuple[int, ...], alpha: float) -> None:
    looks = analyses_at(*counts)
    repeats = 20_000
    shares = crossings(looks, alpha, repeats, seed=99)
    for look, share in zip(looks, shares, strict=True):
        allowed = cumulative_alpha(alpha, look)
        # Three standard errors of this simulation and of the one behind the levels.
        slack = 3.0 * math.sqrt(allowed * (1 / repeats + 1 / PATHS)) + 3.0 / repeats
        assert share <= allowed + slack
    assert shares[-1] == pytest.approx(alpha, rel=0.12)


def test_spending_follows_the_cube_of_the_time() -> None:
    def spent(launches: int, fraction: float) -> float:
        return cumulative_alpha(0.05, InterimAnalysis(launches=launches, fraction=fraction))

    assert spent(8, 0.0) == pytest.approx(0.01)
    assert spent(8, 0.5) == pytest.approx(0.05 * (0.2 + 0.8 / 8))
    assert spent(8, 1.0) == spent(8, 1.7) == 0.05
    assert spent(3, 1.0) == pytest.approx(0.0375)


def test_levels_grow_with_the_time_and_stay_below_alpha() -> None:
    levels = nominal_levels(analyses_at(*range(4, 41)), 0.05)
    for before, after in itertools.pairwise(levels[1:]):
        assert after >= before * 0.9
    assert all(level <= 0.05 for level in levels)


def test_earlier_levels_do_not_depend_on_later_analyses() -> None:
    looks = analyses_at(*range(3, 31))
    levels = nominal_levels(looks, 0.05)
    for count in range(2, len(looks)):
        assert nominal_levels(looks[:count], 0.05) == levels[:count]


def test_a_second_analysis_of_the_same_launches_when_time_is_up() -> None:
    looks = [InterimAnalysis(launches=6, fraction=0.5), InterimAnalysis(launches=6, fraction=1.0)]
    early, late = nominal_levels(looks, 0.05)
    assert early == pytest.approx(0.05 * 0.3)
    # The same p-value: crossing late means crossing the plain level.
    assert late == pytest.approx(0.05, rel=0.05)


def test_a_fraction_that_does_not_grow_spends_only_what_is_left() -> None:
    looks = [InterimAnalysis(launches=n, fraction=1.0) for n in (5, 6)]
    first, second = nominal_levels(looks, 0.05)
    assert first == 0.05
    assert second < 0.03
    assert crossings(looks, 0.05, 20_000, seed=3)[-1] <= 0.05 + 3 * math.sqrt(0.05 / 20_000)


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(2, 25), min_size=2, max_size=6).map(sorted),
    nominal=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    last_fraction=st.sampled_from([0.4, 1.0]),
)
def test_p_grows_with_the_nominal_one_and_agrees_with_the_level(
    counts: list[int], nominal: tuple[float, float], last_fraction: float
) -> None:
    looks = analyses_at(*counts, last_fraction=last_fraction)
    level = nominal_levels(looks, 0.05)[-1]
    earlier = [1.0] * (len(looks) - 1)
    small, large = sorted(nominal)
    p_small = p_value(looks, [*earlier, small], 0.05)
    p_large = p_value(looks, [*earlier, large], 0.05)
    assert 0.0 <= p_small <= p_large <= 1.0
    for one, p in ((small, p_small), (large, p_large)):
        assert (p <= 0.05) if one < level else (p >= 0.05)


def test_p_counts_from_the_first_crossing() -> None:
    looks = analyses_at(4, 8, 12)
    levels = nominal_levels(looks, 0.05)
    early = p_value(looks[:2], [1.0, levels[1] * 0.8], 0.05)
    later = p_value(looks, [1.0, levels[1] * 0.8, levels[2] * 0.9], 0.05)
    assert later == early <= cumulative_alpha(0.05, looks[1])
    # Crossed once and no longer: what counts is the look at which one stopped.
    assert p_value(looks, [1.0, levels[1] * 0.8, levels[2] * 1.1], 0.05) >= 0.05


def test_p_is_uniform_enough_under_the_stopping_rule() -> None:
    looks = analyses_at(3, 5, 7, 9, 11)
    levels = nominal_levels(looks, 0.05)
    rng = np.random.default_rng(17)
    drawn = rng.standard_normal((2500, 11)) * draw_spreads(rng, 2500)[:, np.newaxis]
    nominal = [
        p_values(drawn[:, :n].mean(axis=1), drawn[:, :n].std(axis=1, ddof=1), n)
        for n in (3, 5, 7, 9, 11)
    ]
    results = []
    for path in np.stack(nominal, axis=1):
        stop = next((k for k, p in enumerate(path) if p < levels[k]), len(looks) - 1)
        results.append(p_value(looks[: stop + 1], path[: stop + 1].tolist(), 0.05))
    for level in (0.01, 0.03, 0.05, 0.2, 0.5):
        share = np.mean(np.asarray(results) <= level)
        assert share <= level + 3 * math.sqrt(level * (1 - level) / 2500)
        assert share >= 0.4 * level


def test_p_goes_on_falling_below_what_paths_can_show() -> None:
    looks = analyses_at(10, 20)
    values = [p_value(looks, [1.0, nominal], 0.05) for nominal in (1e-2, 1e-4, 1e-8)]
    spent = cumulative_alpha(0.05, looks[0])
    assert values[0] > values[1] > values[2] > spent
    assert p_value(looks[:1], [1e-12], 0.05) == 1e-12


def test_the_interval_excludes_no_effect_exactly_if_a_level_is_crossed() -> None:
    looks = analyses_at(2, 4, 6, 8)
    for count in range(1, 5):
        plan = looks[:count]
        level = nominal_levels(plan, 0.05)[-1]
        earlier = [1.0] * (count - 1)
        below, above = level * 0.999, level * 1.001
        assert interval_level(plan, [*earlier, below], 0.05) > below
        assert interval_level(plan, [*earlier, above], 0.05) <= above


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
        nominal_levels(looks, 0.05)


def test_invalid_alpha_and_statistics_are_refused() -> None:
    looks = analyses_at(3, 6)
    with pytest.raises(ValueError, match="alpha"):
        nominal_levels(looks, 0.0)
    with pytest.raises(ValueError, match="1 p-values for 2 analyses"):
        p_value(looks, [1.0], 0.05)
