"""The break-even point of compilation, and its text where there is none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from torchyard.core.comparison import (
    Accuracy,
    AccuracyStatus,
    Comparison,
    Estimate,
    Interval,
    VariantMetrics,
    Verdict,
)
from torchyard.core.study import Workload
from torchyard.presentation.wording import break_even_text


def comparison(
    speedup: float = 2.0,
    interval: tuple[float, float] | None = (1.6, 2.5),
    *,
    cold_s: float | None = 10.0,
    baseline_cold_s: float | None = None,
    verdict: Verdict = Verdict.FASTER,
) -> Comparison:
    """A baseline of 100 ms, and a candidate that takes 10 s to compile."""
    return Comparison(
        workload=Workload(suite="kernels", name="matmul"),
        baseline="eager",
        candidate="inductor",
        verdict=verdict,
        estimate=Estimate(
            verdict=verdict,
            speedup=speedup,
            interval=None if interval is None else Interval(low=interval[0], high=interval[1]),
            p_value=0.01,
            launches=5,
            pairs=50,
            pairs_dropped=0,
            launch_sd=None,
            pair_sd=None,
            minimum_detectable=None,
            time_needed_s=None,
        ),
        baseline_metrics=VariantMetrics(time_ns=1e8, compile_cold_s=baseline_cold_s),
        candidate_metrics=VariantMetrics(time_ns=1e8 / speedup, compile_cold_s=cold_s),
    )


def test_the_cost_over_what_an_iteration_saves() -> None:
    one = comparison()
    assert one.break_even_iterations == pytest.approx(10 / (0.1 - 0.05))
    interval = one.break_even_interval
    assert interval is not None
    # The faster it may be, the sooner it pays.
    assert interval.low == pytest.approx(10 / (0.1 - 0.1 / 2.5))
    assert interval.high == pytest.approx(10 / (0.1 - 0.1 / 1.6))
    assert interval.confidence == 0.95
    assert break_even_text(one) == "200 iterations [167, 267]"


def test_only_costs_beyond_those_of_the_baseline_count() -> None:
    assert comparison(baseline_cold_s=6.0).break_even_iterations == pytest.approx(80)
    assert comparison(baseline_cold_s=60.0).break_even_iterations == 0


@pytest.mark.parametrize("speedup", [1.0, 0.9])
def test_a_candidate_that_is_not_faster_never_pays_off(speedup: float) -> None:
    one = comparison(speedup, (0.8, 1.0), verdict=Verdict.SLOWER)
    assert one.break_even_iterations == math.inf
    assert one.break_even_interval == Interval(low=math.inf, high=math.inf)
    assert break_even_text(one) == "never: the candidate is not faster"


def test_a_candidate_that_may_be_faster_may_pay_off() -> None:
    one = comparison(0.99, (0.9, 1.25), verdict=Verdict.UNDECIDED)
    interval = one.break_even_interval
    assert interval is not None
    assert interval.low == pytest.approx(500)
    assert interval.high == math.inf
    assert break_even_text(one) == "never [500 at the earliest]"
    other = comparison(1.25, (0.9, 2.0), verdict=Verdict.UNDECIDED)
    assert break_even_text(other) == "500 iterations [200, never]"


def test_without_a_compile_time_or_a_number_it_is_unknown() -> None:
    for one in (
        comparison(cold_s=None),
        replace(comparison(), estimate=None),
        replace(comparison(), baseline_metrics=VariantMetrics()),
        comparison(verdict=Verdict.WRONG),
        comparison(verdict=Verdict.FAILED),
    ):
        assert one.break_even_iterations is None
        assert one.break_even_interval is None
        assert break_even_text(one) == "–"


def test_without_an_interval_there_is_only_the_number() -> None:
    assert comparison(interval=None).break_even_interval is None
    assert break_even_text(comparison(interval=None)) == "200 iterations"


def test_many_iterations_have_three_digits() -> None:
    assert break_even_text(comparison(cold_s=61728.0, interval=None)) == "1 230 000 iterations"


def test_a_wrong_candidate_has_not_passed_whatever_its_accuracy_says() -> None:
    right = Accuracy(status=AccuracyStatus.PASS)
    assert replace(comparison(), accuracy=right).passed
    assert not replace(comparison(verdict=Verdict.FAILED), accuracy=right).passed
