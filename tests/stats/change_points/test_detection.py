"""Change points: simulated ones are found, noise is not, appending is exact; rank tests are too."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.stats.change_points.simulated_histories import OTHERS, QUIET, Plan, draw, with_step
from torchyard.core.records import decode, encode
from torchyard.stats.change_points.detection import (
    Rules,
    Settled,
    calmed,
    find_moves,
    independent_share,
    noise_sd,
    settle,
    weights_of,
)
from torchyard.stats.change_points.search import (
    SegmentSums,
    _orders,
    all_splits,
    inner_segments,
    mann_whitney_p,
    shift_between,
    weighted_ranks,
)
from torchyard.stats.change_points.shape import Move

Values = NDArray[np.float64]


def found_in(plan: Plan, seed: int) -> tuple[list[Move], tuple[int, ...]]:
    series = draw(plan, np.random.default_rng(seed))
    errors = () if series.errors is None else series.errors
    return find_moves(series.values, errors), series.steps


def noise(count: int, *, sd: float = 0.01, seed: int = 1) -> Values:
    return np.random.default_rng(seed).normal(0.0, sd, count)


def near(moves: list[Move], place: int, *, by: int = 3) -> bool:
    return any(abs(move.first - place) <= by for move in moves)


@pytest.mark.parametrize("size", [0.02, 0.05, 0.10])
def test_planted_step_is_found_at_its_place_with_its_size(size: float) -> None:
    for seed in range(10):
        plan = with_step(size, noise=0.005, length=100)
        moves, (place,) = found_in(plan, seed)
        assert [move.kind for move in moves] == ["step"]
        assert near(moves, place)
        assert abs(moves[0].shift) == pytest.approx(math.log1p(size), abs=0.004)
        assert moves[0].low < moves[0].shift < moves[0].high


def test_intervals_of_sizes_hold() -> None:
    """Nominal 95 %; the place is chosen by the data, which costs a little."""
    covered = total = 0
    for seed in range(150):
        moves, _ = found_in(with_step(0.05, noise=0.01, length=60), seed)
        for move in moves:
            total += 1
            covered += move.low <= math.copysign(math.log(1.05), move.shift) <= move.high
    assert total >= 140
    assert covered / total >= 0.85


@pytest.mark.parametrize(
    "plan", [plan for plan in QUIET if plan.length <= 30], ids=lambda p: p.name
)
def test_quiet_histories_stay_quiet(plan: Plan) -> None:
    """1 in 100 is stated; correlated noise is allowed more, as the documentation says."""
    allowed = 0.15 if plan.correlation else 0.01
    alarms = sum(bool(found_in(plan, seed)[0]) for seed in range(200))
    assert alarms <= 200 * allowed + 4 * math.sqrt(200 * allowed * (1 - allowed))


def test_long_quiet_histories_stay_quiet() -> None:
    plans = [plan for plan in QUIET if plan.length == 300 and not plan.correlation]
    alarms = sum(bool(found_in(plan, seed)[0]) for plan in plans for seed in range(15))
    assert alarms <= 6  # of 75, at 1 in 100 for each of two windows


@pytest.mark.parametrize(
    ("plan", "least"),
    [
        (plan, 0.5 if "two speeds" in plan.name or "alike" in plan.name else 0.8)
        for plan in OTHERS
        if "of 60" not in plan.name
    ],
    ids=lambda value: value.name if isinstance(value, Plan) else "",
)
def test_steps_among_other_changes_are_found(plan: Plan, least: float) -> None:
    right = planted = 0
    for seed in range(8):
        moves, steps = found_in(plan, seed)
        planted += len(steps)
        right += sum(near(moves, place, by=5) for place in steps)
    assert right >= least * planted


def test_single_bad_runs_are_no_changes() -> None:
    logs = noise(60)
    logs[[20, 21, 22, 40]] += 0.5
    assert find_moves(np.exp(logs)) == []


def test_four_runs_make_a_level_after_a_long_history() -> None:
    """How soon a change is told: three runs at a new level are not enough, four are."""
    logs = noise(80, sd=0.005)
    logs[60:] += 0.05
    sizes = [size for size in range(61, 81) if near(find_moves(np.exp(logs[:size])), 60)]
    assert sizes[0] == 64
    assert sizes == list(range(64, 81))


def test_a_slow_drift_is_one_drift_and_no_steps() -> None:
    for seed in range(5):
        logs = noise(300, seed=seed) + 0.1 * np.arange(300) / 300
        moves = find_moves(np.exp(logs))
        assert [move.kind for move in moves] == ["drift"]
        assert moves[0].shift == pytest.approx(0.1, abs=0.03)


def test_a_very_slow_drift_over_many_windows_is_one_drift() -> None:
    logs = noise(2000) + 0.2 * np.arange(2000) / 2000
    moves = find_moves(np.exp(logs))
    assert len(moves) <= 2
    assert moves[0].kind == "drift"
    assert sum(move.shift for move in moves) == pytest.approx(0.2, abs=0.03)


def test_a_step_inside_a_drift_stays_a_step() -> None:
    places = np.arange(200)
    logs = noise(200, sd=0.003) + 0.02 * places / 200 + 0.1 * (places >= 120)
    steps = [move for move in find_moves(np.exp(logs)) if move.kind == "step"]
    assert [move.first for move in steps] == [120]
    assert steps[0].shift == pytest.approx(0.1, abs=0.01)
    assert any(move.kind == "drift" for move in find_moves(np.exp(logs)))


def test_two_steps_in_one_direction_are_two_steps() -> None:
    places = np.arange(200)
    logs = noise(200) + 0.05 * (places >= 70) + 0.05 * (places >= 140)
    moves = find_moves(np.exp(logs))
    assert [(move.kind, move.first) for move in moves] == [("step", 70), ("step", 140)]


def test_exact_numbers_need_no_noise() -> None:
    """Peak memory often does not vary at all."""
    moves = find_moves([1000.0] * 30 + [1100.0] * 5)
    assert [(move.kind, move.first) for move in moves] == [("step", 30)]
    assert math.exp(moves[0].shift) == pytest.approx(1.1)
    assert find_moves([1000.0] * 50) == []


def test_changes_below_the_least_do_not_count() -> None:
    logs = noise(200, sd=0.0005) + 0.003 * (np.arange(200) >= 100)
    assert find_moves(np.exp(logs)) == []
    assert near(find_moves(np.exp(logs), rules=Rules(least=0.001)), 100)


def test_wide_points_count_less() -> None:
    """The same values: with errors that say which are good, a small step is found."""
    hits = {True: 0, False: 0}
    plan = Plan(name="uneven", length=80, noise=0.02, uneven=30.0, steps=((0.5, 0.02),))
    for seed in range(40):
        series = draw(plan, np.random.default_rng(seed))
        assert series.errors is not None
        for known in hits:
            moves = find_moves(series.values, series.errors if known else ())
            hits[known] += near(moves, series.steps[0], by=5)
    assert hits[True] >= hits[False] + 5


def test_wild_errors_do_not_hide_a_clear_step() -> None:
    rng = np.random.default_rng(2)
    for _ in range(10):
        logs = rng.normal(0.0, 0.08, 18) - 0.6 * (np.arange(18) >= 10)
        errors = np.exp(rng.normal(-1.0, 1.5, 18))
        assert near(find_moves(np.exp(logs), errors), 10, by=0)


@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_too_few_points_say_nothing(count: int) -> None:
    assert find_moves([1.0, 2.0, 1.0, 2.0, 5.0, 5.0, 5.0][:count]) == []


def long_history() -> Values:
    places = np.arange(700)
    level = (
        0.05 * (places >= 130) - 0.04 * (places >= 305) + 0.06 * np.clip((places - 420) / 80, 0, 1)
    )
    return np.asarray(np.exp(level + noise(700, seed=5)))


def test_point_by_point_gives_the_same_as_all_at_once() -> None:
    values = long_history()
    settled = Settled()
    for size in range(150, values.size + 1):
        settled = settle(values[:size], settled=settled)
        if size % 37 == 0 or size == values.size:
            assert settled == settle(values[:size])
            assert find_moves(values[:size], settled=settled) == find_moves(values[:size])


def test_what_is_settled_does_not_read_old_points_again() -> None:
    values = long_history()
    settled = settle(values)
    forgotten = values.copy()
    forgotten[: settled.upto - Rules().context] = math.nan
    kept = [move for move in settled.moves if move.last < settled.upto - Rules().context]
    assert kept
    assert find_moves(forgotten, settled=settled) == find_moves(values)


def test_later_points_do_not_change_what_is_settled() -> None:
    values = long_history()
    settled = settle(values[:500])
    other = values.copy()
    other[settled.rests_on :] *= 1.5
    assert settle(other[:500]) == settled
    assert settle(values).moves[: len(settled.moves)] == settled.moves


def test_settled_survives_plain_values() -> None:
    settled = settle(long_history())
    assert settled.moves
    assert decode(Settled, encode(settled), where="settled") == settled


def test_ten_thousand_points_cost_little() -> None:
    """Processor time, five times what was measured; one more point does not cost the whole."""
    values = np.exp(noise(10_000) + 0.05 * ((np.arange(10_000) // 900) % 2))
    find_moves(values[:500])
    started = time.process_time()
    settled = settle(values)
    whole = time.process_time() - started
    started = time.process_time()
    moves = find_moves(values, settled=settled)
    one = time.process_time() - started
    assert all(near(moves, place) for place in range(900, 10_000, 900))
    assert len(moves) <= 11 + 6  # one in 100 of 100 windows may be wrong, at both ends
    assert whole < 2.0
    assert one < whole / 4


def test_scale_and_direction_do_not_matter() -> None:
    values = long_history()
    moves = find_moves(values)
    for other, sign in ((find_moves(values * 1000.0), 1.0), (find_moves(1.0 / values), -1.0)):
        assert [(m.kind, m.first, m.last) for m in other] == [
            (m.kind, m.first, m.last) for m in moves
        ]
        assert [m.shift for m in other] == pytest.approx([sign * m.shift for m in moves])


def test_rules_can_be_stricter() -> None:
    values = np.exp(noise(40) + 0.012 * (np.arange(40) >= 20))
    lenient = find_moves(values, rules=Rules(alpha=0.2, least=0.0))
    strict = find_moves(values, rules=dataclasses.replace(Rules(), alpha=1e-12, least=0.0))
    assert lenient
    assert strict == []


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
    bounds = sorted(zip(pieces.first.tolist(), pieces.last.tolist(), strict=True))
    assert bounds == [(first, last) for first in range(4, 13) for last in range(first + 4, 17)]
    assert pieces.groups[-1] == len(bounds)


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
