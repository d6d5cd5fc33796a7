"""Two runs with a common baseline: Welch's formulas, drift, and session-to-session variation."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from tests.stats.simulated_launches import (
    IID,
    draw_launches,
    mann_whitney_rule,
    threshold_rule,
    welch_rule,
)
from torchyard.core.comparison import Estimate, Interval, Verdict
from torchyard.core.study import Budget
from torchyard.stats.between_runs import (
    SESSION_SD,
    Effect,
    beyond_p,
    difference,
    effect_of,
    interval_of,
    mean_effect,
    ratio_verdict,
)
from torchyard.stats.estimate import decided, estimate
from torchyard.stats.stopping import InterimAnalysis

CLAIMS = {Verdict.FASTER, Verdict.SLOWER}
REPEATS = 400


def single_analysis(effects: list[float] | np.ndarray) -> Estimate:
    return estimate([[float(effect)] for effect in effects], looks=(), budget=Budget())


def effect(effects: list[float] | np.ndarray) -> Effect:
    found = effect_of(single_analysis(effects))
    assert found is not None
    return found


def session(rng: np.random.Generator, *, launches: int = 10, sessions: float = 0.0) -> np.ndarray:
    pairs = draw_launches(IID, rng, launches=launches, pairs=9)
    medians: np.ndarray = np.median(pairs, axis=1) + rng.normal(0.0, sessions)
    return medians


def within(count: int, share: float = 0.05, repeats: int = REPEATS) -> bool:
    return count <= repeats * share + 3.0 * math.sqrt(repeats * share * (1.0 - share))


samples = st.lists(st.floats(-0.2, 0.2), min_size=3, max_size=12).filter(
    lambda values: float(np.std(values)) > 1e-3
)


@pytest.mark.parametrize("spread", [0.004, 0.03])
def test_without_an_allowance_it_is_close_to_welch(spread: float) -> None:
    rng = np.random.default_rng(7)
    ratios = []
    for _ in range(30):
        one, other = rng.normal(0.0, spread, 12), rng.normal(0.01, spread, 16)
        found = difference([effect(one.tolist())], [effect(other.tolist())], session_sd=0.0)
        expected = oracle.ttest_ind(other, one, equal_var=False)
        assert found.log == pytest.approx(np.mean(other) - np.mean(one), abs=1e-12)
        assert found.degrees == pytest.approx(expected.df, rel=0.15)
        ends, interval = expected.confidence_interval(0.95), interval_of(found, 0.95)
        assert interval is not None
        ratios.append(math.log(interval.high / interval.low) / (ends.high - ends.low))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.05)
    assert min(ratios) > 0.8
    assert max(ratios) < 1.25


@given(samples, samples, st.floats(0.0, 0.05))
def test_swapping_the_runs_inverts_the_sign(
    one: list[float], other: list[float], spread: float
) -> None:
    there = difference([effect(one)], [effect(other)], session_sd=spread)
    back = difference([effect(other)], [effect(one)], session_sd=spread)
    assert back.log == pytest.approx(-there.log, abs=1e-12)
    assert (back.error, back.degrees) == pytest.approx((there.error, there.degrees))


@given(samples, samples, st.floats(0.0, 0.05), st.floats(0.0, 0.05))
def test_more_allowance_is_never_more_certain(
    one: list[float], other: list[float], low: float, more: float
) -> None:
    sides = ([effect(one)], [effect(other)])
    little = difference(*sides, session_sd=low)
    much = difference(*sides, session_sd=low + more)
    assert much.error >= little.error - 1e-12


def test_interim_analyses_widen_the_error() -> None:
    values = [0.02, 0.03, 0.025, 0.035, 0.028, 0.031]
    plain = effect(values)
    looks = [InterimAnalysis(launches=n, fraction=n / 12) for n in range(3, 7)]
    stopped = effect_of(
        estimate([[value] for value in values], looks=looks, budget=Budget(precision_goal=0.01))
    )
    assert stopped is not None
    assert stopped.error > 1.1 * plain.error
    spread = np.std(values, ddof=1)
    assert plain.error == pytest.approx(spread / math.sqrt(len(values)), rel=0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"interval": None},
        {"scope": "processes"},
        {"launches": 1},
        {"interval": Interval(low=0.0, high=2.0)},
        {"interval": Interval(low=0.5, high=math.inf)},
    ],
)
def test_a_single_launch_estimate_has_no_effect(change: dict[str, object]) -> None:
    analysis = single_analysis([0.1, 0.2, 0.3])
    assert effect_of(dataclasses.replace(analysis, **change)) is None  # type: ignore[arg-type]


def test_several_sessions_show_their_spread() -> None:
    quiet = [Effect(log=log, error=0.001, degrees=9.0) for log in (0.0, 0.1, -0.1, 0.05)]
    now = [Effect(log=0.1, error=0.001, degrees=9.0)]
    interval = difference(quiet, now)
    seen = math.sqrt(np.var([0.0, 0.1, -0.1, 0.05], ddof=1) - 0.001**2)
    expected = math.sqrt(seen**2 * (1 + 1 / 4) + 0.001**2 * (1 + 1 / 4))
    assert interval.error == pytest.approx(expected)
    assert interval.degrees == pytest.approx(3.0 * (1 + 1 / 4) ** 2 / (1 + 1 / 16), rel=0.01)


def test_sessions_that_agree_by_chance_keep_the_allowance() -> None:
    alike = [Effect(log=0.1, error=0.01, degrees=9.0)] * 4
    now = [Effect(log=0.1, error=0.01, degrees=9.0)]
    interval = difference(alike, now)
    assert interval.error == pytest.approx(math.sqrt((SESSION_SD**2 + 0.01**2) * (1 + 1 / 4)))


def test_the_mean_does_not_average_sessions_away() -> None:
    shared = SESSION_SD * math.sqrt(2.0)
    rows = [Effect(log=0.01, error=math.hypot(shared, 0.001), degrees=20.0)] * 1000
    mean = mean_effect(rows, session_sd=shared)
    assert mean.log == pytest.approx(0.01)
    assert mean.error == pytest.approx(shared, rel=0.01)
    assert mean_effect(rows).error < shared / 20


def test_a_limit_is_crossed_exactly_when_the_near_end_lies_beyond() -> None:
    found = Effect(log=0.05, error=0.01, degrees=12.0)
    interval = interval_of(found, 0.95)
    assert interval is not None
    assert beyond_p(found, math.log(interval.low)) == pytest.approx(0.025)
    assert beyond_p(found, math.log(interval.high)) == pytest.approx(0.975)
    assert beyond_p(found, 0.05) == pytest.approx(0.5)


def test_a_verdict_needs_an_interval_without_zero() -> None:
    sure = Effect(log=0.05, error=0.01, degrees=12.0)
    assert ratio_verdict(sure, confidence=0.95, margin=0.01) is Verdict.FASTER
    turned = dataclasses.replace(sure, log=-0.05)
    assert ratio_verdict(turned, confidence=0.95, margin=0.01) is Verdict.SLOWER
    tight = Effect(log=0.001, error=0.001, degrees=12.0)
    assert ratio_verdict(tight, confidence=0.95, margin=0.01) is Verdict.SAME
    wide = Effect(log=0.01, error=0.03, degrees=12.0)
    assert ratio_verdict(wide, confidence=0.95, margin=0.01) is Verdict.UNDECIDED
    assert interval_of(Effect(log=0.0, error=100.0, degrees=1.0), 0.95) is None


def test_both_runs_need_a_session() -> None:
    with pytest.raises(ValueError, match="both sides"):
        difference([], [Effect(log=0.0, error=1.0, degrees=1.0)])
    with pytest.raises(ValueError, match="nothing"):
        mean_effect([])


def test_drift_between_runs_biases_plain_times_and_not_the_ratio_of_speedups() -> None:
    rng = np.random.default_rng(31)
    rivals = {"welch": 0, "mann-whitney": 0, "threshold": 0}
    ours = 0
    for _ in range(REPEATS):
        times, effects = [], []
        for _ in range(2):
            machine = rng.normal(0.0, 0.03)  # the machine on that day, alike for both variants
            layouts = rng.normal(0.0, 0.015 / math.sqrt(2), 10)
            times.append(0.01 * np.exp(machine + layouts + rng.normal(0.0, 0.01, 10)))
            effects.append(session(rng))
        rivals["welch"] += welch_rule(*times).different
        rivals["mann-whitney"] += mann_whitney_rule(*times).different
        rivals["threshold"] += threshold_rule(*times).different
        interval = difference([effect(effects[0])], [effect(effects[1])])
        ours += ratio_verdict(interval, confidence=0.95, margin=0.0) in CLAIMS
    assert all(count > 0.4 * REPEATS for count in rivals.values()), rivals
    assert within(ours)


@pytest.mark.parametrize("sessions", [0.0, SESSION_SD])
@pytest.mark.parametrize("launches", [3, 10])
def test_false_verdicts_while_sessions_differ_by_no_more_than_allowed(
    sessions: float, launches: int
) -> None:
    rng = np.random.default_rng((7, launches, int(sessions * 1e4)))
    alarms = 0
    for _ in range(REPEATS):
        one, other = (effect(session(rng, launches=launches, sessions=sessions)) for _ in range(2))
        interval = difference([one], [other])
        alarms += ratio_verdict(interval, confidence=0.95, margin=0.0) in CLAIMS
    assert within(alarms)


def test_more_spread_than_allowed_is_seen_by_a_baseline_of_several_runs() -> None:
    rng = np.random.default_rng(8)
    single = several = 0
    for _ in range(REPEATS):
        runs = [effect(session(rng, sessions=0.02)) for _ in range(6)]
        for before in (runs[:1], runs[:5]):
            interval = difference(before, runs[5:])
            claimed = ratio_verdict(interval, confidence=0.95, margin=0.0) in CLAIMS
            single += claimed and len(before) == 1
            several += claimed and len(before) > 1
    assert single > 0.3 * REPEATS, "two runs alone cannot know; the documentation says so"
    assert within(several, 0.07)


def test_runs_that_stopped_when_decided_keep_the_error_rate() -> None:
    rng = np.random.default_rng(9)
    budget = Budget(precision_goal=0.02)
    repeats, alarms = 60, 0
    for _ in range(repeats):
        sides = []
        for _ in range(2):
            launches = [[float(value)] for value in session(rng, launches=12)]
            looks: list[InterimAnalysis] = []
            estimated = None
            for count in range(3, 13):
                looks.append(InterimAnalysis(launches=count, fraction=count / 12))
                estimated = estimate(launches[:count], looks=looks, budget=budget)
                if decided(estimated, budget):
                    break
            assert estimated is not None
            kept = effect_of(estimated)
            assert kept is not None
            sides.append(kept)
        alarms += (
            ratio_verdict(difference(sides[:1], sides[1:]), confidence=0.95, margin=0.0) in CLAIMS
        )
    assert within(alarms, repeats=repeats)
