"""Drift: a simulated slope is found, and process-to-process variation is not mistaken for drift."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from torchyard.audit.model import Drift
from torchyard.audit.variation import _depth, find_drift

LAUNCHES, BLOCKS = 12, 18


def series(
    seed: int, *, slope: float = 0.0, process_sd: float = 0.02, block_sd: float = 0.005
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Minutes and levels of launches, and of their blocks: 12 launches in a minute."""
    rng = np.random.default_rng(seed)
    times = np.arange(LAUNCHES) / LAUNCHES
    levels = slope * times + rng.normal(0.0, process_sd, LAUNCHES)
    block_times = np.repeat(times, BLOCKS)
    block_levels = np.repeat(levels, BLOCKS) + rng.normal(0.0, block_sd, LAUNCHES * BLOCKS)
    return times.tolist(), levels.tolist(), block_times.tolist(), block_levels.tolist()


def drift_of(data: tuple[list[float], list[float], list[float], list[float]]) -> Drift:
    found = find_drift(data[0], data[1], block_minutes=data[2], block_levels=data[3])
    assert found is not None
    return found


def test_a_simulated_drift_is_found() -> None:
    found = drift_of(series(1, slope=0.10, process_sd=0.005))
    assert found.shown
    assert found.interval is not None
    assert found.interval.covers(0.10)
    assert found.per_minute == pytest.approx(0.10, abs=0.02)
    assert found.explains > 0.7


def test_differences_between_processes_are_not_drift() -> None:
    """At 216 blocks a line through blocks would be sure of itself; launches are not."""
    shown = sum(drift_of(series(seed)).shown for seed in range(300))
    assert shown / 300 <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 300)


def test_interval_holds_with_heavy_tails() -> None:
    hits = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        times = np.arange(8) / 8
        levels = 0.05 * times + 0.01 * rng.standard_t(1.5, 8)
        found = find_drift(times.tolist(), levels.tolist(), block_minutes=[], block_levels=[])
        assert found is not None
        assert found.interval is not None
        hits += found.interval.covers(0.05)
    assert hits / 300 >= 0.95 - 4 * math.sqrt(0.05 * 0.95 / 300)


def test_one_outlier_is_not_drift() -> None:
    data = series(5, process_sd=0.002)
    data[1][-1] += 0.5
    assert abs(drift_of(data).per_minute) < 0.02


def test_too_few_launches() -> None:
    assert find_drift([0.0, 1.0], [0.0, 0.1], block_minutes=[], block_levels=[]) is None
    four = find_drift([0, 1, 2, 3], [0, 1, 2, 3], block_minutes=[], block_levels=[])
    assert four is not None
    assert four.per_minute == 1.0
    assert four.interval is None
    assert not four.shown
    assert find_drift([1.0] * 4, [0.0] * 4, block_minutes=[], block_levels=[]) is None


def test_steady_blocks_explain_nothing() -> None:
    found = find_drift([0, 1, 2], [0, 0, 0], block_minutes=[0, 1, 2], block_levels=[0, 0, 0])
    assert found is not None
    assert found.explains == 0.0


def test_many_launches_are_thinned() -> None:
    times = [number / 10 for number in range(1000)]
    found = find_drift(times, [0.03 * t for t in times], block_minutes=[], block_levels=[])
    assert found is not None
    assert found.per_minute == pytest.approx(0.03)


@pytest.mark.parametrize("launches", [4, 5, 6, 7])
def test_depth_against_all_orders(launches: int) -> None:
    """Counted: in how many orders of the launches fewer than `depth` pairs are inverted."""
    orders = list(itertools.permutations(range(launches)))
    inversions = [
        sum(one > other for one, other in itertools.combinations(order, 2)) for order in orders
    ]
    depth = _depth(launches)
    assert sum(count < depth for count in inversions) / len(orders) <= 0.025
    assert sum(count <= depth for count in inversions) / len(orders) > 0.025
