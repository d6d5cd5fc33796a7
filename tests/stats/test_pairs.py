"""Pairs: which are dropped, which are kept when nothing is clean, and interrupted rounds."""

from __future__ import annotations

import math

import pytest

from torchyard.core.block import Block, GuardReading
from torchyard.stats.pairs import pair_blocks


def block(
    launch: int, number: int, variant: str, time_ns: float = 100.0, *dirty: str, last: float = 0.0
) -> Block:
    return Block(
        launch=launch,
        round=number,
        position=0,
        variant=variant,
        seat=0,
        inner=1,
        samples_ns=(time_ns, time_ns, last or time_ns),
        started_ns=0,
        wall_ns=1000,
        guard=GuardReading(),
        dirty=dirty,
    )


def launch_of(number: int, pairs: int, *, dirty: int = 0, why: str = "busy") -> list[Block]:
    found = []
    for index in range(pairs):
        marks = (why,) if index < dirty else ()
        found += [block(number, index, "a", 200.0), block(number, index, "b", 100.0, *marks)]
    return found


def test_a_pair_is_the_log_of_the_speedup() -> None:
    blocks = [block(0, n, "a", 300.0, last=600.0) for n in range(3)]
    blocks += [block(0, n, "b", 100.0) for n in range(3)]
    found = pair_blocks(blocks, "a", "b")
    assert list(found.medians[0]) == pytest.approx([math.log(3)] * 3)
    assert list(found.means[0]) == pytest.approx([math.log(4)] * 3)
    assert (found.pairs, found.dropped, found.busy) == (3, 0, False)


def test_dirty_pairs_are_dropped_for_either_variant() -> None:
    blocks = launch_of(0, 10)
    blocks[0] = block(0, 0, "a", 900.0, "stolen by the host")
    blocks[3] = block(0, 1, "b", 900.0, "waited for a core")
    found = pair_blocks(blocks, "a", "b")
    assert (found.pairs, found.dropped, found.disturbed) == (8, 2, 2)
    assert all(value == pytest.approx(math.log(2)) for value in found.medians[0])
    assert dict(found.reasons) == {"stolen by the host": 1, "waited for a core": 1}


def test_at_half_they_are_dropped_and_above_half_all_are_kept() -> None:
    half = pair_blocks(launch_of(0, 10, dirty=5), "a", "b")
    assert (half.pairs, half.dropped, half.busy) == (5, 5, False)
    most = pair_blocks(launch_of(0, 10, dirty=6), "a", "b")
    assert (most.pairs, most.dropped, most.disturbed, most.busy) == (10, 0, 6, True)


def test_a_launch_with_too_few_pairs_stays_empty_and_is_counted() -> None:
    blocks = [*launch_of(0, 10), *launch_of(1, 6, dirty=4), *launch_of(2, 10)]
    found = pair_blocks(blocks, "a", "b")
    assert [len(launch) for launch in found.medians] == [10, 0, 10]
    assert (found.dropped, found.disturbed) == (6, 4)
    assert dict(found.reasons)["too few clean pairs in the launch"] == 2


def test_an_interrupted_round_is_not_a_pair() -> None:
    blocks = [*launch_of(0, 4), block(0, 4, "a")]
    found = pair_blocks(blocks, "a", "b")
    assert (found.pairs, found.dropped) == (4, 0)


def test_other_candidates_do_not_matter() -> None:
    blocks = [*launch_of(0, 4), *(block(0, n, "c", 5.0, "busy") for n in range(4))]
    assert pair_blocks(blocks, "a", "b").pairs == 4
    assert pair_blocks(blocks, "a", "b").disturbed == 0


def test_no_blocks_are_no_launches() -> None:
    found = pair_blocks([], "a", "b")
    assert (found.medians, found.pairs, found.dropped, found.busy) == ((), 0, 0, False)


def test_a_disturbance_that_comes_with_one_variant_keeps_all_pairs() -> None:
    few = pair_blocks(launch_of(0, 20, dirty=7), "a", "b")
    assert (few.dropped, few.one_sided) == (7, ())  # 7 of 7: p = 0.016
    found = pair_blocks(launch_of(0, 20, dirty=8), "a", "b")
    assert (found.pairs, found.dropped, found.disturbed, found.busy) == (20, 0, 8, False)
    assert found.one_sided == found.never_same
    assert found.one_sided == (
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
    found = pair_blocks(blocks, "a", "b")
    assert (found.dropped, found.one_sided) == (9, ())


def test_a_rare_disturbance_of_one_variant_is_kept_and_does_not_rule_out_same() -> None:
    blocks = [one for number in range(10) for one in launch_of(number, 100, dirty=1)]
    found = pair_blocks(blocks, "a", "b")
    assert (found.dropped, len(found.one_sided), found.never_same) == (0, 1, ())
