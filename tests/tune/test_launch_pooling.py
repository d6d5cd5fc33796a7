"""Pooling launches, and Holm's correction."""

from __future__ import annotations

import math
import random

import pytest

from torchyard.tune.race_rounds import holm, pooled


def test_one_launch_has_no_interval() -> None:
    effect = pooled([0.1], alpha=0.05)
    assert effect.half_width is None
    assert effect.p_value is None
    assert (effect.low, effect.high) == (-math.inf, math.inf)
    assert effect.interval(0.05) is None
    assert effect.speedup == pytest.approx(math.exp(0.1))
    with pytest.raises(ValueError, match="no launch"):
        pooled([], alpha=0.05)


def test_intervals_cover_as_often_as_they_say() -> None:
    chance = random.Random(1)
    covered = 0
    for _ in range(1000):
        one = pooled([chance.gauss(0.03, 0.01) for _ in range(4)], alpha=0.1, least_sd=0.0)
        covered += one.low <= 0.03 <= one.high
    assert 0.87 < covered / 1000 < 0.93


def test_launches_that_agree_by_chance_do_not_give_confidence() -> None:
    assert pooled([0.001, 0.001], alpha=0.1).low < 0.0
    assert pooled([0.001, 0.001], alpha=0.1, least_sd=0.0).low > 0.0


def test_p_value_and_interval_agree() -> None:
    for mean in (0.0, 0.005, 0.02):
        one = pooled([mean - 0.01, mean, mean + 0.012, mean + 0.004], alpha=0.05, least_sd=0.0)
        assert one.p_value is not None
        assert (one.p_value < 0.05) == (one.low > 0.0 or one.high < 0.0)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.5]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
    assert holm([0.02]) == [0.02]
