"""The minimal subset, whatever the property, and the error budget of its tests."""

from __future__ import annotations

import random

import pytest

from torchyard.stats.delta_debugging import minimize, share_of_alpha


@pytest.mark.parametrize("needed", [{0}, {15}, {3, 4}, {0, 15}, {1, 7, 12}, set(range(16))])
def test_what_is_needed_stays(needed: set[int]) -> None:
    smaller: list[tuple[int, ...]] = []
    result = minimize(range(16), lambda chosen: needed <= set(chosen), smaller.append)
    assert set(result) == needed
    assert all(needed <= set(one) for one in smaller)


def test_no_item_can_be_left_out() -> None:
    for seed in range(30):

        def keeps(chosen: tuple[int, ...], seed: int = seed) -> bool:
            return len(chosen) == 9 or random.Random(f"{seed}/{chosen}").random() < 0.3

        result = minimize(range(9), keeps)
        assert keeps(result)
        if len(result) > 1:
            assert not any(keeps(tuple(i for i in result if i != one)) for one in result)


def test_one_of_many_takes_few_tests() -> None:
    tests = []

    def keeps(chosen: tuple[int, ...]) -> bool:
        tests.append(chosen)
        return 700 in chosen

    assert minimize(range(1024), keeps) == (700,)
    assert len(tests) <= 20


def test_the_budget_is_not_exceeded() -> None:
    assert sum(share_of_alpha(0.05, number) for number in range(1, 10_000)) < 0.05
