"""How often the search names the right and a wrong revision, on many simulated ranges.

With 40 ranges, three wrong results are not rare at a true rate of 1.5 %: rates need more ranges.
"""

from __future__ import annotations

import pytest

from tests.bisect.simulated_range import endings

COUNT = 120


@pytest.mark.parametrize("size", [0.02, 0.05, 0.2])
def test_the_change_is_located(size: float) -> None:
    results = endings(size, count=COUNT)
    assert results["right"] >= 0.9 * COUNT, results
    assert results["wrong"] <= 0.05 * COUNT, results


@pytest.mark.parametrize("time_s", [60.0, 600.0])
def test_ranges_without_a_change_name_nobody(time_s: float) -> None:
    results = endings(0.0, count=COUNT, time_s=time_s)
    assert results["right"] + results["wrong"] + results["several"] <= 0.05 * COUNT, results


@pytest.mark.parametrize("size", [0.02, 0.2])
def test_the_change_is_located_among_disturbed_runs(size: float) -> None:
    results = endings(size, count=COUNT, slow_share=0.05)
    assert results["right"] >= 0.9 * COUNT, results
    assert results["wrong"] <= 0.05 * COUNT, results


def test_disturbed_ranges_without_a_change_name_nobody() -> None:
    results = endings(0.0, count=COUNT, slow_share=0.05)
    assert results["right"] + results["wrong"] + results["several"] <= 0.05 * COUNT, results
