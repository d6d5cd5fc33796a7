"""False alarms of sweeps that compare everything with itself."""

from __future__ import annotations

from tests.sweep.sample_sweeps import (
    PASS,
    cell,
    comparison,
    null_sweep,
    plan,
    run,
    status,
    study,
    whole_sweep,
    workload,
)
from torchyard.core.comparison import Accuracy, AccuracyStatus
from torchyard.sweep.summary import sweep_summary


def test_a_false_alarm_rate_at_the_nominal_level() -> None:
    found = sweep_summary(*null_sweep(200)).false_alarms
    assert found is not None
    assert found.comparisons == 200
    assert found.within
    assert found.rate.covers(0.05)
    assert found.called <= found.significant
    assert found.called_adjusted <= found.called
    assert sum(found.bins) == 200


def test_a_false_alarm_rate_above_the_nominal_level() -> None:
    found = sweep_summary(*null_sweep(60, shift=0.01)).false_alarms
    assert found is not None
    assert not found.within
    assert found.rate.low > 0.05
    assert found.bins[0] > 50
    assert found.called_adjusted > 0


def test_small_p_values_are_reported_even_without_alarms() -> None:
    """Effects too small for alpha each, but in every comparison."""
    found = sweep_summary(*null_sweep(200, shift=0.0025)).false_alarms
    assert found is not None
    assert found.excess_chance < 0.01
    assert not found.within


def test_other_sweeps_have_no_false_alarms() -> None:
    assert sweep_summary(*whole_sweep()).false_alarms is None


def test_candidates_that_share_a_baseline_are_noted() -> None:
    one = workload("one")
    two = ("eager-again", "eager-again-2")
    only = cell(1, study(one, candidates=two))
    rows = [comparison(one, candidate=name, speedup=1.0, accuracy=PASS) for name in two]
    found = sweep_summary(plan([only], null=True), [status(only)], [run(rows)])
    assert found.false_alarms is not None
    assert found.false_alarms.shared_baselines


def test_random_workloads_can_give_false_alarms_too() -> None:
    one = workload("one")
    drawn = Accuracy(status=AccuracyStatus.RANDOM)
    only = cell(1, study(one, candidates=("eager-again",)))
    row = comparison(one, candidate="eager-again", speedup=1.3, accuracy=drawn)
    found = sweep_summary(plan([only], null=True), [status(only)], [run([row])]).false_alarms
    assert found is not None
    assert (found.comparisons, found.called_adjusted) == (1, 1)
