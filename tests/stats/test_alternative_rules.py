"""The alternative rules are implemented correctly: scipy agrees with each test."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from tests.stats.simulated_launches import (
    RULES,
    Rule,
    bootstrap_rule,
    dynamo_rule,
    mann_whitney_rule,
    naive_peeking,
    threshold_rule,
    welch_rule,
)

TIMES = st.lists(st.floats(0.5, 2.0).map(lambda value: round(value, 3)), min_size=2, max_size=20)


def spread_out(values: list[float]) -> bool:
    return float(np.ptp(values)) > 1e-2


@given(TIMES, TIMES)
def test_dynamo_rule_is_the_equal_variance_t_test(first: list[float], second: list[float]) -> None:
    if not (spread_out(first) and spread_out(second)):
        return
    answer = dynamo_rule(first, second)
    assert answer.p_value == pytest.approx(scipy.stats.ttest_ind(first, second).pvalue, rel=1e-8)
    assert answer.speedup == pytest.approx(np.median(first) / np.median(second))
    assert answer.p_value is not None
    assert answer.different == (answer.p_value < 0.1)


@given(TIMES, TIMES)
def test_welch_rule_is_welch(first: list[float], second: list[float]) -> None:
    if not (spread_out(first) and spread_out(second)):
        return
    expected = scipy.stats.ttest_ind(first, second, equal_var=False).pvalue
    assert welch_rule(first, second).p_value == pytest.approx(expected, rel=1e-8)


@given(TIMES, TIMES)
def test_mann_whitney_rule_is_mann_whitney(first: list[float], second: list[float]) -> None:
    if len(set(first + second)) == 1:
        return
    expected = scipy.stats.mannwhitneyu(first, second, method="asymptotic").pvalue
    assert mann_whitney_rule(first, second).p_value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_sees_a_large_difference_and_no_difference(name: str) -> None:
    rng = np.random.default_rng(1)
    rule: Rule = RULES[name]
    times = rng.normal(1.0, 0.01, 60)
    assert rule(times, times * 0.8).different
    assert rule(times, times * 0.8).speedup == pytest.approx(1.25, rel=1e-9)
    assert not rule(times, times).different


@pytest.mark.parametrize("name", RULES)
def test_times_without_any_spread(name: str) -> None:
    assert not RULES[name]([1.0] * 10, [1.0] * 10).different
    assert RULES[name]([1.0] * 10, [1.1] * 10).different


@pytest.mark.parametrize("bad", [[1.0], [1.0, 0.0], [1.0, -2.0], [1.0, float("nan")]])
def test_invalid_times_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="two positive times"):
        threshold_rule(bad, [1.0, 2.0])


def test_bootstrap_repeats_itself() -> None:
    rng = np.random.default_rng(2)
    first, second = rng.normal(1.0, 0.1, 30), rng.normal(1.03, 0.1, 30)
    assert bootstrap_rule(first, second) == bootstrap_rule(first, second)


def test_naive_peeking_stops_at_the_first_yes() -> None:
    answer = naive_peeking([0.1, 0.101, 0.099, -5.0, 5.0])
    assert answer.different
    assert answer.speedup == pytest.approx(np.exp(0.1))
    calm = naive_peeking([0.1, -0.1, 0.1, -0.1])
    assert not calm.different
    assert calm.p_value == pytest.approx(1.0)
    assert not naive_peeking([0.1, 0.1]).different
