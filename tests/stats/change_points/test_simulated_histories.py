"""Rules of other tools are reproduced correctly, and labeled histories have their changes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.stats.change_points.simulated_histories import (
    QUIET,
    RIVALS,
    Plan,
    _deviations,
    _fits,
    asv_steps,
    draw,
    threshold_alarms,
    with_step,
)


def test_deviations_are_those_of_medians() -> None:
    values = np.random.default_rng(1).normal(size=12)
    costs = _deviations(values)
    for start, end in ((0, 11), (3, 4), (2, 8), (5, 11)):
        part = values[start : end + 1]
        assert costs[start, end] == pytest.approx(np.abs(part - np.median(part)).sum())
    assert np.isinf(costs[4, 4])


def test_fits_are_the_best_of_all() -> None:
    values = np.random.default_rng(2).normal(size=9)
    costs = _deviations(values)
    fits = _fits(costs, 2)
    assert fits[0] == [0, 9]
    two = min(costs[0, a - 1] + costs[a, 8] for a in range(2, 8))
    assert costs[0, fits[1][1] - 1] + costs[fits[1][1], 8] == pytest.approx(two)
    three = min(
        costs[0, a - 1] + costs[a, b - 1] + costs[b, 8]
        for a in range(2, 6)
        for b in range(a + 2, 8)
    )
    ends = fits[2]
    assert sum(costs[a, b - 1] for a, b in pairwise(ends)) == pytest.approx(three)


def test_asv_finds_a_clear_step_and_leaves_small_ones_out() -> None:
    values = 1.0 + np.random.default_rng(3).normal(0.0, 0.003, 60)
    values[40:] *= 1.03
    assert asv_steps(values) == [40]
    assert asv_steps(values, smallest=0.05) == []
    assert asv_steps(values[:40]) == []


def test_threshold_reports_each_sequence_of_alarms_once() -> None:
    values = np.ones(40)
    values[20:] = 1.2
    assert threshold_alarms(values) == [20]
    values[:] = 1.0
    values[[15, 30]] = 0.9
    assert threshold_alarms(values) == [15, 30]
    assert threshold_alarms(np.ones(40)) == []


def test_other_rules_accept_any_length() -> None:
    values = np.exp(np.random.default_rng(4).normal(0.0, 0.01, 30))
    for rule in RIVALS.values():
        for size in (4, 5, 10, 30):
            assert all(0 < place < size for place in rule(values[:size]))


def test_labels_are_where_levels_change() -> None:
    plan = Plan(name="", length=100, noise=1e-6, steps=((0.4, 0.1), (0.7, -0.1)), moved=0.1)
    series = draw(plan, np.random.default_rng(5))
    jumps = np.flatnonzero(np.abs(np.diff(np.log(series.values))) > 0.05) + 1
    assert tuple(jumps) == series.steps
    assert len(series.steps) == 2


def test_drift_and_uneven_noise_are_as_planned() -> None:
    plan = Plan(name="", length=200, noise=1e-6, drift=(0.25, 0.75, 0.1))
    series = draw(plan, np.random.default_rng(6))
    assert series.drift == (50, 150)
    assert abs(np.log(series.values[-1] / series.values[0])) == pytest.approx(0.1, abs=1e-3)
    uneven = draw(Plan(name="", length=4000, uneven=10.0), np.random.default_rng(7))
    assert uneven.errors is not None
    scores = np.log(uneven.values) / uneven.errors
    assert np.std(scores) == pytest.approx(1.0, abs=0.05)


def test_same_seed_same_history() -> None:
    for plan in (*QUIET, with_step(0.02, noise=0.01, length=30)):
        one, other = (draw(plan, np.random.default_rng(8)) for _ in range(2))
        assert one.values.tolist() == other.values.tolist()
        assert one.steps == other.steps
    names = [plan.name for plan in QUIET]
    assert len(set(names)) == len(names)
