"""Many comparisons: adjusted p-values, withdrawn verdicts, the geometric mean."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from torchyard.core.comparison import Estimate, Verdict
from torchyard.core.study import Budget
from torchyard.stats.estimate import estimate
from torchyard.stats.suite import (
    adjust_for_suite,
    benjamini_hochberg,
    counts_in_mean,
    demote,
    geometric_mean,
    verdict_alone,
)


def made(effect: float, sd: float, launches: int, rng: np.random.Generator) -> Estimate:
    drawn = [[float(value)] for value in rng.normal(effect, sd, launches)]
    return estimate(drawn, looks=(), budget=Budget())


def with_p(p: float | None, verdict: Verdict = Verdict.FASTER) -> Estimate:
    answer = made(0.05, 0.001, 5, np.random.default_rng(1))
    return dataclasses.replace(answer, p_value=p, verdict=verdict)


@given(st.lists(st.floats(0.0, 1.0), max_size=30))
def test_adjusted_p_values_agree_with_scipy(p_values: list[float]) -> None:
    expected = scipy.stats.false_discovery_control(p_values) if p_values else []
    assert benjamini_hochberg(p_values) == pytest.approx(list(expected), rel=1e-12)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_adjusting_keeps_order_and_never_lowers(p_values: list[float]) -> None:
    adjusted = benjamini_hochberg(p_values)
    assert all(after >= before for before, after in zip(p_values, adjusted, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert list(np.asarray(adjusted)[order]) == sorted(adjusted)


def test_weak_claims_are_withdrawn_and_strong_ones_stay() -> None:
    estimates = [with_p(0.001), with_p(0.04), *[with_p(0.5, Verdict.UNDECIDED)] * 8]
    strong, weak, *rest = adjust_for_suite(estimates, 0.05)
    assert strong.verdict is Verdict.FASTER
    assert strong.p_adjusted == pytest.approx(0.01)
    assert weak.verdict is Verdict.UNDECIDED
    assert weak.p_adjusted == pytest.approx(0.2)
    assert weak.reasons[-1] == (
        "faster on its own (p = 0.04), but not significant after adjustment for all comparisons of the run (adjusted p = 0.2)"
    )
    assert weak.interval == estimates[1].interval
    assert all(one.verdict is Verdict.UNDECIDED for one in rest)


def test_same_rests_on_its_interval() -> None:
    assert demote(dataclasses.replace(with_p(0.9, Verdict.SAME), p_adjusted=0.9), 0.05).verdict is (
        Verdict.SAME
    )


def test_estimates_without_a_test_are_left_alone() -> None:
    untested = with_p(None, Verdict.UNDECIDED)
    tested = with_p(0.04)
    assert adjust_for_suite([untested, tested], 0.05) == [
        untested,
        dataclasses.replace(tested, p_adjusted=0.04),
    ]
    assert adjust_for_suite([], 0.05) == []


def test_false_discoveries_stay_rare_over_a_suite() -> None:
    rng = np.random.default_rng(6)
    any_alarm = any_before = 0
    suites = 80
    for _ in range(suites):
        estimates = [made(0.0, 0.02, 6, rng) for _ in range(20)]
        claims = {Verdict.FASTER, Verdict.SLOWER}
        any_before += any(one.verdict in claims for one in estimates)
        any_alarm += any(one.verdict in claims for one in adjust_for_suite(estimates, 0.05))
    assert any_before > 0.5 * suites
    assert any_alarm <= 0.05 * suites + 3 * math.sqrt(0.05 * 0.95 * suites)


def test_mean_of_one_comparison_is_that_comparison() -> None:
    one = made(0.03, 0.01, 7, np.random.default_rng(2))
    mean = geometric_mean([one])
    assert mean is not None
    assert one.interval is not None
    assert mean[0] == pytest.approx(one.speedup)
    assert mean[1].low == pytest.approx(one.interval.low, rel=1e-9)
    assert mean[1].high == pytest.approx(one.interval.high, rel=1e-9)


def test_mean_of_two_is_close_to_welch() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal(0.02, 0.01, 6), rng.normal(0.05, 0.03, 9)
    mean = geometric_mean(
        [
            estimate([[float(v)] for v in values], looks=(), budget=Budget())
            for values in (first, second)
        ]
    )
    assert mean is not None
    welch = scipy.stats.ttest_ind(first, -second, equal_var=False).confidence_interval(0.95)
    width = (welch.high - welch.low) / 2.0  # of the sum
    assert math.log(mean[1].high / mean[1].low) / 2.0 == pytest.approx(width / 2.0, rel=0.08)
    assert mean[0] == pytest.approx(math.exp((first.mean() + second.mean()) / 2))


def test_mean_interval_covers_the_truth() -> None:
    rng = np.random.default_rng(4)
    truth = float(np.exp(np.mean([0.0, 0.1, -0.05])))
    covered = 0
    means = 300
    for _ in range(means):
        mean = geometric_mean(
            [made(0.0, 0.01, 4, rng), made(0.1, 0.05, 6, rng), made(-0.05, 0.02, 3, rng)]
        )
        assert mean is not None
        covered += mean[1].covers(truth)
    assert 0.92 * means <= covered <= 0.98 * means


def test_comparisons_without_a_spread_over_launches_do_not_count() -> None:
    single = estimate([[0.5] * 10], looks=(), budget=Budget())
    nothing = estimate([], looks=(), budget=Budget())
    one = made(0.03, 0.01, 7, np.random.default_rng(2))
    assert not counts_in_mean(single)
    assert not counts_in_mean(nothing)
    assert geometric_mean([one, single, nothing]) == geometric_mean([one])
    assert geometric_mean([]) is None
    assert geometric_mean([nothing]) is None


def test_mean_of_single_launches_rests_on_their_own_intervals() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        mean = geometric_mean(
            [
                estimate([list(drawn)], looks=(), budget=Budget(max_launches=1))
                for drawn in rng.normal(0.1, 0.01, (3, 40))
            ]
        )
        assert mean is not None
        assert mean[1].covers(mean[0])
        assert mean[1].high / mean[1].low < 1.01
        covered += mean[1].covers(math.exp(0.1))
    assert covered >= 0.92 * 300


def test_identical_launches_leave_an_interval() -> None:
    flat = estimate([[0.1]] * 3, looks=(), budget=Budget())
    mean = geometric_mean([flat, flat])
    assert mean is not None
    assert mean[1].low < mean[0] < mean[1].high


def test_the_reason_names_the_family() -> None:
    weak = adjust_for_suite([with_p(0.04), with_p(0.9, Verdict.SAME)], 0.05, family="sweep")[0]
    assert "comparisons of the sweep" in weak.reasons[-1]


def test_a_withdrawn_claim_is_visible_in_its_interval() -> None:
    for claimed, effect in ((Verdict.FASTER, 0.05), (Verdict.SLOWER, -0.05)):
        effects = made(effect, 0.001, 5, np.random.default_rng(1))
        assert effects.verdict is claimed
        taken_back = demote(dataclasses.replace(effects, p_adjusted=0.3), 0.05)
        assert taken_back.verdict is Verdict.UNDECIDED
        assert verdict_alone(taken_back, Budget()) is claimed
        # A larger family may have adjusted it again since, to a value that would have passed.
        again = dataclasses.replace(taken_back, p_adjusted=0.01)
        assert verdict_alone(again, Budget()) is claimed


def test_what_never_was_a_claim_stays_undecided() -> None:
    wide = made(0.0, 0.05, 5, np.random.default_rng(1))
    assert wide.verdict is Verdict.UNDECIDED
    assert verdict_alone(dataclasses.replace(wide, p_adjusted=0.9), Budget()) is Verdict.UNDECIDED
    few = made(0.05, 0.0001, 2, np.random.default_rng(1))
    assert few.verdict is Verdict.UNDECIDED
    assert verdict_alone(dataclasses.replace(few, p_adjusted=0.9), Budget()) is Verdict.UNDECIDED
