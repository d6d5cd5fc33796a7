"""The rank test is exact for small samples, handles ties, and its shifts have correct intervals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from torchyard.stats.change_points.detection import calmed, independent_share, noise_sd, weights_of
from torchyard.stats.change_points.search import (
    SegmentSums,
    _orders,
    all_splits,
    inner_segments,
    mann_whitney_p,
    shift_between,
    weighted_ranks,
)


@pytest.mark.parametrize(("one", "other"), [(3, 5), (4, 6), (5, 5), (2, 9)])
def test_orders_are_counted_exactly(one: int, other: int) -> None:
    sums = [
        sum(chosen) - one * (one - 1) // 2
        for chosen in itertools.combinations(range(one + other), one)
    ]
    for larger, below in enumerate(_orders(one, other)):
        assert below == pytest.approx(np.mean([value <= larger for value in sums]))


@pytest.mark.parametrize(("one", "other"), [(4, 56), (10, 10), (20, 230)])
def test_complete_separation_has_two_orders(one: int, other: int) -> None:
    expected = 2.0 / math.comb(one + other, one)
    assert mann_whitney_p(one, other, 0.0) == pytest.approx(expected)
    assert mann_whitney_p(one, other, 1.0) == pytest.approx(expected)
    assert mann_whitney_p(other, one, 1.0) == pytest.approx(expected)


def test_counted_and_approximate_chances_meet() -> None:
    for share in (0.2, 0.3, 0.4):
        counted, near = mann_whitney_p(20, 60, share), mann_whitney_p(21, 60, share)
        assert near == pytest.approx(counted, rel=0.5)


def test_an_empty_sample_proves_nothing() -> None:
    assert mann_whitney_p(0, 10, 0.0) == 1.0
    assert mann_whitney_p(1, 1, 0.0) == pytest.approx(1.0)


def test_ranks_with_weights_and_ties() -> None:
    values = np.array([3.0, 1.0, 3.0, 2.0])
    assert weighted_ranks(values, np.ones(4)).tolist() == [3.0, 0.5, 3.0, 1.5]
    assert weighted_ranks(values, np.array([1.0, 2.0, 1.0, 4.0])).tolist() == [7.0, 1.0, 7.0, 4.0]


def test_shift_is_the_middle_of_differences() -> None:
    before, after = np.array([1.0, 2.0, 9.0]), np.array([4.0, 5.0, 6.0])
    shift, low, high = shift_between((before, np.ones(3)), (after, np.ones(3)))
    differences = [b - a for a in before for b in after]
    assert shift == pytest.approx(float(np.median(differences)))
    assert min(differences) <= low <= shift <= high <= max(differences)


def test_interval_of_a_shift_covers() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(300):
        sides = [(rng.standard_t(3, 20) + level, np.ones(20)) for level in (0.0, 1.0)]
        _, low, high = shift_between(sides[0], sides[1])
        hits += low <= 1.0 <= high
    assert hits / 300 >= 0.95 - 4 * math.sqrt(0.05 * 0.95 / 300)


def test_segments_are_tested_like_single_ones() -> None:
    rng = np.random.default_rng(4)
    values, weights = rng.normal(size=30), rng.uniform(0.5, 2.0, 30)
    sums = SegmentSums(values, weights, independent_share=1.0)
    for pieces in (all_splits(30, 4), inner_segments(30, 4)):
        shares = sums.larger(pieces)
        for place in range(0, shares.size, 17):
            inside = np.zeros(30, dtype=bool)
            inside[pieces.first[place] : pieces.last[place]] = True
            above = values[inside][:, np.newaxis] > values[~inside][np.newaxis, :]
            pairs = weights[inside][:, np.newaxis] * weights[~inside][np.newaxis, :]
            assert shares[place] == pytest.approx(float((above * pairs).sum() / pairs.sum()))


def test_every_piece_is_there_once() -> None:
    pieces = inner_segments(20, 4)
    found = sorted(zip(pieces.first.tolist(), pieces.last.tolist(), strict=True))
    assert found == [(first, last) for first in range(4, 13) for last in range(first + 4, 17)]
    assert pieces.groups[-1] == len(found)


def test_noise_is_seen_through_steps_outliers_and_drift() -> None:
    rng = np.random.default_rng(6)
    values = rng.normal(0.0, 0.01, 400)
    assert noise_sd(values) == pytest.approx(0.01, rel=0.1)
    values += 0.2 * (np.arange(400) >= 200) + 0.1 * np.arange(400) / 400
    values[::40] += 1.0
    assert noise_sd(values) == pytest.approx(0.01, rel=0.15)


def test_autocorrelation_is_estimated() -> None:
    rng = np.random.default_rng(7)
    noise = rng.normal(size=400)
    assert independent_share(noise, []) > 0.85
    for place in range(1, 400):
        noise[place] = 0.6 * noise[place - 1] + 0.8 * noise[place]
    assert independent_share(noise, []) == pytest.approx(0.25, abs=0.1)
    assert independent_share(noise[:15], []) == 1.0


def test_weights_follow_errors_within_reason() -> None:
    rng = np.random.default_rng(8)
    values = rng.normal(0.0, 0.01, 60)
    assert weights_of(values, np.full(60, math.nan)).tolist() == [1.0] * 60
    errors = np.full(60, 0.01)
    errors[:20], errors[20], errors[21] = 0.03, 1e-9, math.nan
    weights = weights_of(values, errors)
    assert weights[0] < 0.6
    assert 1.0 <= weights[20] <= 4.0
    assert weights[21] == pytest.approx(weights[30]) == pytest.approx(1.0)
    assert weights_of(np.ones(5), np.zeros(5)).tolist() == [1.0] * 5


def test_wild_errors_leave_most_of_the_series() -> None:
    """Intervals of two launches can be ten times too wide, or too narrow."""
    rng = np.random.default_rng(3)
    errors = np.exp(rng.normal(0.0, 2.0, 18))
    weights = weights_of(rng.normal(0.0, 0.05, 18), errors)
    assert weights.sum() ** 2 / (weights @ weights) >= 0.8 * 18
    assert weights[np.argmax(errors)] < weights[np.argmin(errors)]


def test_outliers_are_drawn_in_and_steps_are_not() -> None:
    values = np.random.default_rng(9).normal(0.0, 0.01, 60) + 0.3 * (np.arange(60) >= 30)
    values[10] = 5.0
    drawn = calmed(values)
    assert drawn[10] < 0.1
    assert np.abs(drawn - values)[11:].max() < 0.02
    assert calmed(values[:5]).tolist() == values[:5].tolist()
