"""Pairs: which are dropped, which are kept when nothing is clean, interrupted rounds, and launches from pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sample_records import made_block
from torchyard.core.block import Block
from torchyard.errors import Untrustworthy
from torchyard.stats.launches import launch_effects, launch_sd, pair_floor, pair_sd
from torchyard.stats.pairs import pair_blocks


def block(
    launch: int, number: int, variant: str, time_ns: float = 100.0, *dirty: str, last: float = 0.0
) -> Block:
    return made_block(
        variant,
        launch=launch,
        round=number,
        samples_ns=(time_ns, time_ns, last or time_ns),
        dirty=dirty,
    )


def launch_of(number: int, pairs: int, *, dirty: int = 0, why: str = "busy") -> list[Block]:
    blocks = []
    for index in range(pairs):
        marks = (why,) if index < dirty else ()
        blocks += [block(number, index, "a", 200.0), block(number, index, "b", 100.0, *marks)]
    return blocks


def test_a_pair_is_the_log_of_the_speedup() -> None:
    blocks = [block(0, n, "a", 300.0, last=600.0) for n in range(3)]
    blocks += [block(0, n, "b", 100.0) for n in range(3)]
    pairs = pair_blocks(blocks, "a", "b")
    assert list(pairs.medians[0]) == pytest.approx([math.log(3)] * 3)
    assert list(pairs.means[0]) == pytest.approx([math.log(4)] * 3)
    assert (pairs.pairs, pairs.dropped, pairs.busy) == (3, 0, False)


def test_dirty_pairs_are_dropped_for_either_variant() -> None:
    blocks = launch_of(0, 10)
    blocks[0] = block(0, 0, "a", 900.0, "stolen by the host")
    blocks[3] = block(0, 1, "b", 900.0, "waited for a core")
    pairs = pair_blocks(blocks, "a", "b")
    assert (pairs.pairs, pairs.dropped, pairs.disturbed) == (8, 2, 2)
    assert all(value == pytest.approx(math.log(2)) for value in pairs.medians[0])
    assert dict(pairs.reasons) == {"stolen by the host": 1, "waited for a core": 1}


def test_at_half_they_are_dropped_and_above_half_all_are_kept() -> None:
    half = pair_blocks(launch_of(0, 10, dirty=5), "a", "b")
    assert (half.pairs, half.dropped, half.busy) == (5, 5, False)
    most = pair_blocks(launch_of(0, 10, dirty=6), "a", "b")
    assert (most.pairs, most.dropped, most.disturbed, most.busy) == (10, 0, 6, True)


def test_a_launch_with_too_few_pairs_stays_empty_and_is_counted() -> None:
    blocks = [*launch_of(0, 10), *launch_of(1, 6, dirty=4), *launch_of(2, 10)]
    pairs = pair_blocks(blocks, "a", "b")
    assert [len(launch) for launch in pairs.medians] == [10, 0, 10]
    assert (pairs.dropped, pairs.disturbed) == (6, 4)
    assert dict(pairs.reasons)["too few clean pairs in the launch"] == 2


def test_an_interrupted_round_is_not_a_pair() -> None:
    blocks = [*launch_of(0, 4), block(0, 4, "a")]
    pairs = pair_blocks(blocks, "a", "b")
    assert (pairs.pairs, pairs.dropped) == (4, 0)


def test_other_candidates_do_not_matter() -> None:
    blocks = [*launch_of(0, 4), *(block(0, n, "c", 5.0, "busy") for n in range(4))]
    assert pair_blocks(blocks, "a", "b").pairs == 4
    assert pair_blocks(blocks, "a", "b").disturbed == 0


def test_no_blocks_are_no_launches() -> None:
    pairs = pair_blocks([], "a", "b")
    assert (pairs.medians, pairs.pairs, pairs.dropped, pairs.busy) == ((), 0, 0, False)


def test_a_disturbance_that_comes_with_one_variant_keeps_all_pairs() -> None:
    few = pair_blocks(launch_of(0, 20, dirty=7), "a", "b")
    assert (few.dropped, few.one_sided) == (7, ())  # 7 of 7: p = 0.016
    pairs = pair_blocks(launch_of(0, 20, dirty=8), "a", "b")
    assert (pairs.pairs, pairs.dropped, pairs.disturbed, pairs.busy) == (20, 0, 8, False)
    assert pairs.one_sided == pairs.never_same
    assert pairs.one_sided == (
        "disturbance is attributed to the candidate: it occurs in 40% of its blocks and in 0% of the baseline's",
    )
    swapped = pair_blocks(launch_of(0, 20, dirty=8), "b", "a")
    assert swapped.one_sided[0].startswith(
        "disturbance is attributed to the baseline: it occurs in 40%"
    )


def test_rounds_that_are_dirty_for_both_variants_are_neutral() -> None:
    blocks = []
    for index in range(20):
        marks = ("busy",) if index < 9 else ()
        blocks += [block(0, index, "a", 200.0, *marks), block(0, index, "b", 100.0, *marks)]
    pairs = pair_blocks(blocks, "a", "b")
    assert (pairs.dropped, pairs.one_sided) == (9, ())


def test_a_rare_disturbance_of_one_variant_is_kept_and_does_not_rule_out_same() -> None:
    blocks = [one for number in range(10) for one in launch_of(number, 100, dirty=1)]
    pairs = pair_blocks(blocks, "a", "b")
    assert (pairs.dropped, len(pairs.one_sided), pairs.never_same) == (0, 1, ())


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
    sd = pair_sd(launches)
    assert sd is not None
    assert math.sqrt(math.pi / 2 / 6) * sd < 0.1 * true_sd
    assert pair_floor(launches) == pytest.approx(true_sd, rel=0.35)


def test_single_pairs_imply_nothing() -> None:
    assert pair_floor([[0.1], [0.2], []]) == 0.0
    assert pair_floor([]) == 0.0


def test_pair_sd_ignores_preemptions() -> None:
    rng = np.random.default_rng(5)
    pairs = rng.normal(0.0, 0.02, 200)
    pairs[::10] += 3.0
    sd = pair_sd([list(pairs)])
    assert sd is not None
    assert sd < 0.03


def test_pair_sd_is_unknown_without_two_pairs_in_a_launch() -> None:
    assert pair_sd([]) is None
    assert pair_sd([[0.1], [], [0.2]]) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_refused_by_place(bad: float) -> None:
    with pytest.raises(Untrustworthy, match="launch 1, pair 2") as caught:
        launch_effects([[0.0], [0.1, 0.2, bad, 0.1]])
    assert caught.value.hint
    assert str(bad) in caught.value.what
