"""Student's t compared with scipy, in the center and in the tails."""

from __future__ import annotations

import math

import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from torchyard.stats.distributions import (
    normal_quantile,
    student_cdf,
    student_quantile,
    two_sided_critical,
    two_sided_p,
)

DEGREES = [1, 1.5, 2, 3, 4.7, 5, 9, 29, 79, 81, 250, 1e4, 1e6]


@pytest.mark.parametrize("df", DEGREES)
@pytest.mark.parametrize("value", [1e-3, 0.1, 0.5, 0.8, 0.82, 1, 1.7, 2, 3, 5, 12, 50, 1e3, 1e6])
def test_two_sided_p_agrees_with_scipy(df: float, value: float) -> None:
    expected = 2.0 * scipy.stats.t.sf(value, df)
    if expected < 1e-280:
        assert two_sided_p(value, df) < 1e-270
    else:
        assert two_sided_p(value, df) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("df", DEGREES)
@pytest.mark.parametrize("tail", [1e-12, 1e-9, 1e-5, 1e-3, 0.01, 0.025, 0.1, 0.25, 0.45, 0.499])
def test_critical_value_agrees_with_scipy(df: float, tail: float) -> None:
    expected = scipy.stats.t.isf(tail, df)
    assert two_sided_critical(2.0 * tail, df) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("df", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("value", [-30.0, -2.0, -0.1, 0.0, 0.3, 1.0, 4.0])
def test_cdf_agrees_with_scipy(df: float, value: float) -> None:
    assert student_cdf(value, df) == pytest.approx(scipy.stats.t.cdf(value, df), rel=1e-11)


@pytest.mark.parametrize("probability", [1e-12, 1e-4, 0.2, 0.5, 0.8, 0.975, 1 - 1e-9])
def test_quantile_agrees_with_scipy(probability: float) -> None:
    for df in DEGREES:
        expected = scipy.stats.t.ppf(probability, df)
        assert student_quantile(probability, df) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_infinitely_many_degrees_of_freedom_are_normal() -> None:
    assert two_sided_critical(0.05, math.inf) == pytest.approx(1.959963984540054, rel=1e-12)
    assert two_sided_p(3.0, math.inf) == pytest.approx(2 * scipy.stats.norm.sf(3.0), rel=1e-12)
    assert normal_quantile(0.975) == pytest.approx(scipy.special.ndtri(0.975), rel=1e-12)


@given(
    df=st.floats(0.5, 1e5),
    tail=st.floats(1e-12, 0.49),
)
def test_quantile_undoes_the_tail(df: float, tail: float) -> None:
    assert two_sided_p(two_sided_critical(2 * tail, df), df) == pytest.approx(2 * tail, rel=1e-8)


@given(df=st.floats(0.5, 1e5), value=st.floats(0, 1e4), more=st.floats(0, 10))
def test_tail_falls_with_the_statistic(df: float, value: float, more: float) -> None:
    assert two_sided_p(value + more, df) <= two_sided_p(value, df) * (1 + 1e-12)


@given(df=st.floats(1, 1e4), value=st.floats(-50, 50))
def test_cdf_is_symmetric(df: float, value: float) -> None:
    assert student_cdf(value, df) + student_cdf(-value, df) == pytest.approx(1.0, rel=1e-12)


def test_the_ends() -> None:
    assert two_sided_critical(0.0, 5) == math.inf
    assert two_sided_critical(1.0, 5) == 0.0
    assert two_sided_p(math.inf, 5) == 0.0
    assert two_sided_p(0.0, 5) == 1.0
    assert student_quantile(0.5, 7) == 0.0


@pytest.mark.parametrize("df", [0.0, -1.0, math.nan])
def test_invalid_degrees_of_freedom_are_refused(df: float) -> None:
    with pytest.raises(ValueError, match="degrees of freedom"):
        two_sided_p(1.0, df)


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, math.nan])
def test_invalid_probabilities_are_refused(probability: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        student_quantile(probability, 3)


def test_a_statistic_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        two_sided_p(math.nan, 3)
