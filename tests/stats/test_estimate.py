"""The estimate of one comparison: intervals, verdicts, reasons, and invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.core.comparison import Estimate, Interval, Verdict
from torchyard.core.study import Budget
from torchyard.errors import Untrustworthy, UsageError
from torchyard.stats.estimate import ONE_LAUNCH, decided, estimate, verdict_of
from torchyard.stats.launch_model import LaunchSummary, half_width, p_values
from torchyard.stats.launches import SD_FLOOR, pair_floor
from torchyard.stats.stopping import InterimAnalysis

BUDGET = Budget()
LOGS = st.floats(-1.0, 1.0).map(lambda value: round(value, 6))
LAUNCHES = st.lists(st.lists(LOGS, min_size=1, max_size=7), min_size=2, max_size=10)


def single(launches: list[list[float]], budget: Budget = BUDGET, **more: object) -> Estimate:
    return estimate(launches, looks=(), budget=budget, **more)  # type: ignore[arg-type]


def interval_of(answer: Estimate) -> Interval:
    assert answer.interval is not None
    return answer.interval


def around(centre: float, step: float, launches: int = 6) -> list[list[float]]:
    """Launches that alternate around a centre, three pairs each."""
    return [
        [centre + step * (-1) ** n - 0.001, centre + step * (-1) ** n, centre + step * (-1) ** n]
        for n in range(launches)
    ]


@given(LAUNCHES)
def test_a_single_analysis_is_the_model_of_launch_medians(launches: list[list[float]]) -> None:
    medians = np.asarray([np.median(pairs) for pairs in launches])
    answer = single(launches)
    mean, count = float(medians.mean()), len(medians)
    summary = LaunchSummary(
        launches=count,
        spread=max(float(medians.std(ddof=1)), SD_FLOOR),
        pair_variance=pair_floor(launches) ** 2,
    )
    nominal = float(
        p_values(
            np.asarray([mean]),
            np.asarray([summary.spread]),
            count,
            pair_variance=summary.pair_variance,
        )[0]
    )
    level = {2: 0.05 if nominal < 0.005 else 0.005, 3: 0.05 if nominal < 0.0375 else 0.0375}
    width = half_width(summary, level.get(count, 0.05))
    assert answer.speedup == pytest.approx(math.exp(mean), rel=1e-12)
    assert answer.p_value is not None
    if count > 3:
        assert answer.p_value == pytest.approx(nominal, rel=1e-8)
    else:
        assert answer.p_value >= nominal * (1 - 1e-9)
    if answer.interval is None:
        assert width > 20.0
    else:
        assert math.log(answer.interval.low) == pytest.approx(mean - width, rel=1e-6, abs=1e-9)
        assert math.log(answer.interval.high) == pytest.approx(mean + width, rel=1e-6, abs=1e-9)
    assert answer.launch_sd == pytest.approx(np.std(medians, ddof=1))
    assert answer.launches == len(launches)
    assert answer.pairs == sum(map(len, launches))
    assert answer.scope == "launches"


@pytest.mark.parametrize("launches", [8, 20])
@pytest.mark.parametrize("spread", [0.004, 0.015, 0.05])
def test_many_launches_give_the_t_interval(launches: int, spread: float) -> None:
    """The prior matters less and less; it may not make the interval much narrower than Student's."""
    rng = np.random.default_rng(launches)
    ratios = []
    for _ in range(40):
        values = rng.normal(0.0, spread, launches)
        interval = interval_of(single([[float(value)] for value in values]))
        student = scipy.stats.t.ppf(0.975, launches - 1) * values.std(ddof=1) / math.sqrt(launches)
        ratios.append(math.log(interval.high / interval.low) / 2.0 / student)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.06)
    assert min(ratios) > 0.8


@given(LAUNCHES)
def test_the_interval_is_at_least_as_wide_as_pairs_imply(launches: list[list[float]]) -> None:
    answer = single(launches)
    if answer.interval is not None:
        width = math.log(answer.interval.high / answer.interval.low) / 2.0
        assert width >= 1.95 * pair_floor(launches) / math.sqrt(len(launches)) * (1 - 1e-9)


@given(LAUNCHES)
def test_swapping_baseline_and_candidate_inverts_everything(launches: list[list[float]]) -> None:
    answer = single(launches)
    other = single([[-value for value in pairs] for pairs in launches])
    mirror = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    assert other.verdict is mirror.get(answer.verdict, answer.verdict)
    assert other.speedup == pytest.approx(1.0 / answer.speedup, rel=1e-12)
    assert other.p_value == pytest.approx(answer.p_value, rel=1e-9)
    if answer.interval is not None:
        assert interval_of(other).low == pytest.approx(1.0 / answer.interval.high, rel=1e-9)
        assert interval_of(other).high == pytest.approx(1.0 / answer.interval.low, rel=1e-9)


@given(
    times=st.lists(
        st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=1, max_size=5),
        min_size=3,
        max_size=6,
    ),
    factor=st.sampled_from([1e-9, 1e-3, 2.0, 1e6]),
)
def test_the_unit_of_time_does_not_matter(
    times: list[list[tuple[float, float]]], factor: float
) -> None:
    def logs(unit: float) -> list[list[float]]:
        return [[math.log((a * unit) / (b * unit)) for a, b in launch] for launch in times]

    answer, other = single(logs(1.0)), single(logs(factor))
    assert other.speedup == pytest.approx(answer.speedup, rel=1e-9)
    assert (other.interval is None) == (answer.interval is None)
    if answer.interval is not None:
        assert interval_of(other).low == pytest.approx(answer.interval.low, rel=1e-6)


@given(LAUNCHES, st.randoms(use_true_random=False))
def test_order_of_launches_and_pairs_does_not_matter_in_a_single_analysis(
    launches: list[list[float]], random: object
) -> None:
    shuffled = [sorted(pairs) for pairs in launches]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    answer, other = single(launches), single(shuffled)
    assert other.speedup == pytest.approx(answer.speedup, rel=1e-12)
    assert other.p_value == pytest.approx(answer.p_value, rel=1e-6, abs=1e-12)
    assert other.launch_sd == pytest.approx(answer.launch_sd, abs=1e-12)


@settings(deadline=None)
@given(LAUNCHES, st.integers(0, 3))
def test_interval_holds_the_speedup_and_narrows_with_alpha(
    launches: list[list[float]], interim: int
) -> None:
    total = len(launches)
    looks = [
        InterimAnalysis(launches=n, fraction=n / total)
        for n in range(max(2, total - interim), total + 1)
    ]
    widths = []
    for alpha in (0.01, 0.05, 0.2):
        budget = Budget(alpha=alpha, min_launches=2)
        answer = estimate(launches, looks=looks, budget=budget)
        if answer.interval is None:
            widths.append(math.inf)
            continue
        assert answer.interval.covers(answer.speedup)
        assert answer.interval.confidence == 1.0 - alpha
        widths.append(math.log(answer.interval.high / answer.interval.low))
    assert widths == sorted(widths, reverse=True)


@given(LAUNCHES)
def test_p_value_and_interval_are_consistent(launches: list[list[float]]) -> None:
    total = len(launches)
    looks = [InterimAnalysis(launches=n, fraction=n / total) for n in range(2, total + 1)]
    answer = estimate(launches, looks=looks, budget=Budget(min_launches=2))
    assert answer.p_value is not None
    if answer.interval is not None and not answer.interval.covers(1.0):
        assert answer.p_value <= 0.05
    else:
        assert answer.p_value >= 0.05


def test_the_four_verdicts() -> None:
    assert single(around(0.05, 0.002)).verdict is Verdict.FASTER
    assert single(around(-0.05, 0.002)).verdict is Verdict.SLOWER
    assert single(around(0.0, 0.002)).verdict is Verdict.SAME
    unclear = single(around(0.01, 0.03))
    assert unclear.verdict is Verdict.UNDECIDED
    assert "beyond the margin of 1.00%" in unclear.reasons[0]


def test_a_small_significant_difference_inside_the_margin_is_the_same() -> None:
    answer = single(around(0.005, 0.0005))
    assert answer.verdict is Verdict.SAME
    assert not interval_of(answer).covers(1.0)
    assert single(around(0.005, 0.0005), Budget(margin=0.001)).verdict is Verdict.FASTER


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-math.log1p(0.01), math.log1p(0.01), Verdict.SAME),
        (-0.00996, 0.00996, Verdict.UNDECIDED),
        (0.001, 0.02, Verdict.FASTER),
        (-0.02, -0.001, Verdict.SLOWER),
        (0.0, 0.02, Verdict.UNDECIDED),
        (-0.02, 0.0, Verdict.UNDECIDED),
    ],
)
def test_verdicts_at_their_limits(low: float, high: float, verdict: Verdict) -> None:
    assert verdict_of(low, high, 0.01) is verdict


def test_interim_analyses_widen_the_interval_and_only_then() -> None:
    launches = around(0.03, 0.01, 8)
    looks = [InterimAnalysis(launches=n, fraction=n / 8) for n in range(3, 9)]
    plain = interval_of(single(launches))
    looked = interval_of(estimate(launches, looks=looks, budget=BUDGET))
    assert looked.low < plain.low < plain.high < looked.high
    # With the whole time asked for nothing can stop early: interim looks cost nothing.
    patient = Budget(precision_goal=0.0)
    assert interval_of(estimate(launches, looks=looks, budget=patient)) == plain
    # Nor do looks with too few launches for a verdict.
    late = Budget(min_launches=8)
    assert interval_of(estimate(launches, looks=looks, budget=late)) == plain


def test_a_crossed_analysis_has_a_narrower_interval_than_an_open_one() -> None:
    looks = [InterimAnalysis(launches=n, fraction=n / 10) for n in range(3, 9)]
    crossed = interval_of(estimate(around(0.06, 0.01, 8), looks=looks, budget=BUDGET))
    open_ = interval_of(estimate(around(0.001, 0.01, 8), looks=looks, budget=BUDGET))
    assert math.log(crossed.high / crossed.low) < math.log(open_.high / open_.low)


@pytest.mark.parametrize(("effect", "verdict"), [(math.log(2.0), "faster"), (0.3, "undecided")])
def test_two_launches_decide_large_effects_only(effect: float, verdict: str) -> None:
    looks = [InterimAnalysis(launches=2, fraction=0.1)]
    answer = estimate([[effect - 0.004] * 6, [effect + 0.004] * 6], looks=looks, budget=BUDGET)
    assert answer.verdict == verdict
    assert decided(answer, BUDGET) is (verdict == "faster")


def test_no_launch_and_no_clean_pair() -> None:
    cases: tuple[list[list[float]], ...] = ([], [[], []])
    for launches in cases:
        answer = single(launches)
        assert answer.verdict is Verdict.UNDECIDED
        assert (answer.launches, answer.pairs, answer.interval) == (0, 0, None)
        assert (answer.p_value, answer.launch_sd, answer.pair_sd) == (None, None, None)
        assert answer.reasons == ("no launch has a clean pair",)
        assert not decided(answer, BUDGET)


def test_one_launch_describes_its_own_processes_only() -> None:
    pairs = [0.05 + 0.0001 * n for n in range(20)]
    answer = single([pairs])
    assert answer.scope == "processes"
    assert answer.verdict is Verdict.UNDECIDED
    assert answer.reasons == (ONE_LAUNCH,)
    assert answer.p_value is None
    interval = interval_of(answer)
    assert math.log(interval.low) == pytest.approx(pairs[5])
    assert math.log(interval.high) == pytest.approx(pairs[14])
    assert not decided(answer, BUDGET)


def test_one_launch_that_was_asked_for_gets_a_verdict() -> None:
    answer = single([[0.05] * 20], Budget(max_launches=1))
    assert answer.verdict is Verdict.FASTER
    assert answer.scope == "processes"
    assert answer.p_value == pytest.approx(2 * 0.5**20)
    assert answer.reasons == (ONE_LAUNCH,)
    assert decided(answer, Budget(max_launches=1))
    few = single([[0.05] * 4], Budget(max_launches=1))
    assert few.verdict is Verdict.UNDECIDED
    assert "too few data for a confidence interval" in few.reasons


def test_fewer_launches_than_a_verdict_needs() -> None:
    large = [[0.9], [0.901]]
    answer = single(large, Budget(min_launches=3))
    assert answer.verdict is Verdict.UNDECIDED
    assert answer.interval is not None
    assert answer.reasons == ("2 launches; a verdict needs 3",)
    assert single(large, Budget(min_launches=3, max_launches=2)).verdict is Verdict.FASTER


def test_launches_without_clean_pairs_are_excluded_and_noted() -> None:
    launches = around(0.05, 0.002)
    with_gaps = [launches[0], [], *launches[1:4], [], *launches[4:]]
    answer, full = single(with_gaps), single(launches)
    assert answer.interval == full.interval
    assert answer.launches == 6
    assert answer.reasons == ("2 of 8 launches had no clean pair and were excluded",)
    looks = [InterimAnalysis(launches=n, fraction=n / 8) for n in range(3, 9)]
    usable = [2, 3, 4, 4, 5, 6]
    gaps = estimate(with_gaps, looks=looks, budget=BUDGET)
    counted = [
        InterimAnalysis(launches=n, fraction=look.fraction)
        for n, look in zip(usable, looks, strict=True)
    ]
    assert gaps.interval == estimate(launches, looks=counted, budget=BUDGET).interval


def test_identical_launches_are_handled_without_a_zero() -> None:
    answer = single([[0.05, 0.05]] * 4)
    assert answer.launch_sd == 0.0
    assert answer.verdict is Verdict.FASTER
    assert answer.p_value is not None
    assert answer.p_value > 0.0
    assert any("clock is too coarse" in reason for reason in answer.reasons)
    same = single([[0.0]] * 4)
    assert (same.verdict, same.p_value) == (Verdict.SAME, 1.0)


def test_an_interval_that_is_too_wide_is_omitted() -> None:
    answer = single([[-300.0], [400.0]])
    assert answer.interval is None
    assert answer.reasons == ("too few data for a confidence interval",)


def test_stopping_needs_a_verdict_and_the_precision() -> None:
    sharp = single(around(0.05, 0.002))
    assert decided(sharp, Budget(precision_goal=0.01))
    assert decided(sharp, Budget(precision_goal=0.0001)), "precise for the size of the effect"
    assert not decided(sharp, Budget(precision_goal=0.0))
    wide = single(around(0.5, 0.25))
    assert wide.verdict is Verdict.FASTER
    assert not decided(wide, Budget(precision_goal=0.01))
    assert decided(wide, Budget(precision_goal=0.4))
    unclear = single(around(0.01, 0.03))
    assert not decided(unclear, Budget(precision_goal=0.5))


def test_planning_numbers_of_an_estimate() -> None:
    answer = single(around(0.0, 0.02, 6), Budget(min_launches=3), seconds_per_launch=2.5)
    assert answer.launch_sd is not None
    sd = answer.launch_sd
    expected = (scipy.stats.t.ppf(0.975, 5) + scipy.stats.t.ppf(0.8, 5)) * sd / math.sqrt(6)
    assert answer.minimum_detectable == pytest.approx(expected, rel=1e-9)
    needed = next(
        k for k in range(3, 999) if scipy.stats.t.ppf(0.975, k - 1) * sd / math.sqrt(k) <= 0.01
    )
    assert answer.time_needed_s == pytest.approx(2.5 * needed)
    assert single(around(0.0, 0.02)).time_needed_s is None
    patient = single(around(0.0, 0.02), Budget(precision_goal=0.0), seconds_per_launch=2.5)
    assert patient.time_needed_s is None


def test_rare_slow_iterations_are_noted() -> None:
    medians, means = around(0.05, 0.002), around(0.02, 0.002)
    answer = single(medians, mean_launches=means)
    assert answer.mean_speedup == pytest.approx(math.exp(0.02), abs=1e-3)
    assert answer.verdict is Verdict.FASTER
    assert any("means and medians disagree" in reason for reason in answer.reasons)
    calm = single(medians, mean_launches=around(0.0505, 0.002))
    assert calm.mean_speedup == pytest.approx(math.exp(0.0505), rel=1e-3)
    assert calm.reasons == ()
    assert single(medians, mean_launches=[]).mean_speedup is None
    assert single(medians, mean_launches=means[:3]).mean_speedup is not None


@pytest.mark.parametrize(
    ("medians", "means", "verdict"),
    [
        (0.05, -0.01, Verdict.UNDECIDED),
        (-0.05, 0.01, Verdict.UNDECIDED),
        (0.0, 0.02, Verdict.UNDECIDED),
        (0.0, -0.02, Verdict.UNDECIDED),
        (0.0, 0.008, Verdict.SAME),
        (0.05, 0.2, Verdict.FASTER),
        (-0.05, -0.2, Verdict.SLOWER),
    ],
)
def test_a_verdict_that_means_contradict_is_withheld(
    medians: float, means: float, verdict: Verdict
) -> None:
    answer = single(around(medians, 0.002), mean_launches=around(means, 0.002))
    assert answer.verdict is verdict
    assert bool(answer.withheld) is (verdict is Verdict.UNDECIDED)
    assert set(answer.withheld) <= set(answer.reasons)


def test_same_can_be_ruled_out_and_other_verdicts_cannot() -> None:
    refused = single(around(0.0, 0.002), never_same=("the candidate faults",))
    assert (refused.verdict, refused.withheld) == (Verdict.UNDECIDED, ("the candidate faults",))
    assert single(around(0.05, 0.002), never_same=("x",)).verdict is Verdict.FASTER


def test_dropped_pairs_are_carried() -> None:
    assert single(around(0.0, 0.002), pairs_dropped=7).pairs_dropped == 7


def test_numpy_rows_are_launches_too() -> None:
    rows = np.asarray(around(0.05, 0.002))
    assert single(list(rows)) == single(around(0.05, 0.002))


def test_data_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(Untrustworthy, match="launch 0, pair 1"):
        single([[0.0, math.nan], [0.1], [0.2]])


@pytest.mark.parametrize(
    ("budget", "key"),
    [
        (Budget(alpha=0.0), "alpha"),
        (Budget(alpha=math.nan), "alpha"),
        (Budget(margin=-0.1), "margin"),
        (Budget(precision_goal=-1.0), "precision-goal"),
        (Budget(min_launches=0), "min-launches"),
        (Budget(max_launches=0), "max-launches"),
    ],
)
def test_invalid_budgets_are_refused_by_key(budget: Budget, key: str) -> None:
    with pytest.raises(UsageError, match=key):
        single([[0.1], [0.2], [0.3]], budget)


def test_analyses_that_do_not_match_the_launches_raise_value_error() -> None:
    with pytest.raises(ValueError, match="2 of 3 launches"):
        estimate(
            [[0.1], [0.2], [0.3]], looks=[InterimAnalysis(launches=2, fraction=1.0)], budget=BUDGET
        )
