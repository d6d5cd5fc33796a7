"""Simulated machines that try to make *faster*, *slower*, *same* or an interval false.

Every world has a known truth. Seeds are fixed: a failure is a change of the code, not bad luck. Rates
are compared with their limit plus three standard errors of the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sample_records import made_block
from torchyard.bench.outcome import Spent, make_estimate
from torchyard.core.block import Block
from torchyard.core.comparison import Estimate, Verdict
from torchyard.core.study import Budget
from torchyard.machine.guards.block_check import REASONS
from torchyard.stats.estimate import decided, estimate
from torchyard.stats.pairs import PairedLaunches, pair_blocks
from torchyard.stats.stopping import InterimAnalysis
from torchyard.stats.suite import adjust_for_suite, geometric_mean, selected_intervals

Rng = np.random.Generator
Values = NDArray[np.float64]
Draw = Callable[[Rng, tuple[int, ...]], Values]

ALPHA = 0.05
CLAIMS = {Verdict.FASTER, Verdict.SLOWER}


def at_most(share: float, repeats: int) -> float:
    return repeats * share + 3.0 * math.sqrt(repeats * share * (1.0 - share))


def at_least(share: float, repeats: int) -> float:
    return repeats * share - 3.0 * math.sqrt(repeats * share * (1.0 - share))


# Pair noise, scaled to a standard deviation near 1.
PAIR_NOISE: dict[str, Draw] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "heavy tail": lambda rng, size: rng.standard_t(2.0, size),
    "skewed": lambda rng, size: rng.exponential(1.0, size),
    "30 % in a second mode": lambda rng, size: (
        4.0 * (rng.random(size) < 0.3) + 0.25 * rng.standard_normal(size)
    ),
}


def analyses_of(total: int, first: int = 3) -> list[InterimAnalysis]:
    return [InterimAnalysis(launches=n, fraction=n / total) for n in range(first, total + 1)]


def stopped(launches: list[list[float]], budget: Budget) -> Estimate:
    """The estimate at which a session stops that analyses the data after every launch."""
    looks = analyses_of(len(launches))
    answer = None
    for place, look in enumerate(looks):
        answer = estimate(launches[: look.launches], looks=looks[: place + 1], budget=budget)
        if decided(answer, budget):
            break
    assert answer is not None
    return answer


# --- intervals: pairs are noisier than launches -------------------------------------------------


@pytest.mark.parametrize("launch_share", [0.0, 0.5])
@pytest.mark.parametrize(
    ("launches", "pairs"), [(3, 6), pytest.param(5, 10, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("noise", PAIR_NOISE)
def test_intervals_cover_where_pairs_dominate_also_when_launches_agree(
    noise: str, launches: int, pairs: int, launch_share: float
) -> None:
    """Coverage in all comparisons and in the quarter whose launches agree best."""
    rng = np.random.default_rng((21, launches, pairs, int(10 * launch_share)))
    draw = PAIR_NOISE[noise]
    medians = np.median(draw(rng, (20_000, pairs)), axis=1)
    truth, median_sd = float(medians.mean()), float(medians.std())
    repeats = 800
    drawn = 0.05 * (
        draw(rng, (repeats, launches, pairs))
        - truth
        + math.sqrt(launch_share) * median_sd * rng.standard_normal((repeats, launches, 1))
    )
    answers = [estimate(one.tolist(), looks=(), budget=Budget()) for one in drawn]
    covered = [one.interval is not None and one.interval.covers(1.0) for one in answers]
    spreads = np.asarray([one.launch_sd for one in answers], dtype=np.float64)
    agreeing = spreads <= np.quantile(spreads, 0.25)
    quarter = int(agreeing.sum())
    assert sum(covered) >= at_least(0.94, repeats)
    # Two modes leave a launch's median with two typical values, which few pairs cannot show.
    limit = 0.88 if "mode" in noise else 0.94
    assert np.asarray(covered)[agreeing].sum() >= at_least(limit, quarter)


def test_three_launches_that_agree_by_luck_do_not_make_noisy_pairs_precise() -> None:
    """Thirteen pairs between -1.5 % and +38.7 %, launch medians within 0.3 % of each other."""
    launches = [
        [0.112, 0.114, -0.015, 0.327],
        [0.113, -0.01, 0.05, 0.25, 0.2],
        [0.02, 0.111, 0.118, 0.3],
    ]
    answer = estimate(launches, looks=(), budget=Budget())
    assert answer.launch_sd is not None
    assert answer.launch_sd < 0.002
    assert answer.interval is not None
    assert answer.interval.low < 1.0 < answer.interval.high
    assert answer.verdict is Verdict.UNDECIDED
    assert any("closer than their pairs explain" in reason for reason in answer.reasons)


def test_the_floor_leaves_a_clear_effect_to_be_found() -> None:
    """Power where pairs dominate: 5 % noise of pairs, 10 pairs, 8 launches, 6 % effect."""
    rng = np.random.default_rng(22)
    alarms = sum(
        estimate(rng.normal(0.06, 0.05, (8, 10)).tolist(), looks=(), budget=Budget()).verdict
        is Verdict.FASTER
        for _ in range(300)
    )
    assert alarms >= 0.9 * 300


def test_the_floor_changes_nothing_where_launches_dominate() -> None:
    rng = np.random.default_rng(23)
    for _ in range(50):
        launches = (rng.normal(0.0, 0.02, (6, 1)) + rng.normal(0.0, 0.003, (6, 20))).tolist()
        with_pairs = estimate(launches, looks=(), budget=Budget())
        medians = [[float(np.median(one))] for one in launches]
        plain = estimate(medians, looks=(), budget=Budget())
        assert with_pairs.interval is not None
        assert plain.interval is not None
        assert with_pairs.interval.low == pytest.approx(plain.interval.low, abs=2e-4)
        assert with_pairs.interval.high == pytest.approx(plain.interval.high, abs=2e-4)


@pytest.mark.parametrize("noise", PAIR_NOISE)
def test_p_value_and_interval_agree_at_every_analysis_with_noisy_pairs(noise: str) -> None:
    rng = np.random.default_rng(24)
    looks = analyses_of(8)
    seen = 0
    for _ in range(60):
        effect = rng.choice([0.0, 0.05, 0.3])
        launches = (effect + 0.05 * PAIR_NOISE[noise](rng, (8, 6))).tolist()
        for place, look in enumerate(looks):
            answer = estimate(launches[: look.launches], looks=looks[: place + 1], budget=Budget())
            assert answer.p_value is not None
            if answer.interval is None:
                continue
            excludes = not answer.interval.covers(1.0)
            seen += excludes
            assert (answer.p_value <= ALPHA) is excludes or answer.p_value == ALPHA
            if answer.verdict is Verdict.SAME:
                assert answer.interval.low >= 1 / 1.0101
                assert answer.interval.high <= 1.0101
    assert seen > 0


@pytest.mark.parametrize("pair_sd", [0.002, 0.05])
@pytest.mark.parametrize("effect", [0.0, 0.0105, -0.05])
def test_verdicts_of_a_session_that_stops_early_are_rarely_false(
    effect: float, pair_sd: float
) -> None:
    """*Same* is false beyond the margin of 1 %, *faster* and *slower* on the wrong side of it."""
    rng = np.random.default_rng((25, int(1e4 * abs(effect)), int(1e4 * pair_sd)))
    repeats = 100
    false = 0
    for _ in range(repeats):
        spread = 0.004 * math.exp(rng.normal(0.0, 0.7))
        launches = rng.normal(effect, spread, (10, 1)) + rng.normal(0.0, pair_sd, (10, 6))
        verdict = stopped(launches.tolist(), Budget(precision_goal=0.02)).verdict
        false += verdict is Verdict.SAME and abs(effect) > math.log(1.01)
        false += verdict is Verdict.FASTER and effect <= 0.0
        false += verdict is Verdict.SLOWER and effect >= 0.0
    assert false <= at_most(ALPHA, repeats)


def test_launches_that_depend_on_each_other_lose_claims_that_need_independence() -> None:
    """A neighbour who stays for several launches: correlation 0.8 over 20 launches."""
    rng = np.random.default_rng(26)
    narrow = called = 0
    for _ in range(150):
        shocks = rng.standard_normal(20)
        for place in range(1, 20):
            shocks[place] = 0.8 * shocks[place - 1] + 0.6 * shocks[place]
        answer = estimate([[float(0.015 * one)] for one in shocks], looks=(), budget=Budget())
        assert answer.interval is not None
        narrow += not answer.interval.covers(1.0)
        called += answer.verdict in CLAIMS
        strong = [[float(0.7 + 0.015 * one)] for one in shocks]
        assert estimate(strong, looks=(), budget=Budget()).verdict is Verdict.FASTER
    assert narrow > 0.4 * 150
    assert called < 0.7 * narrow


def test_independent_launches_keep_their_claims() -> None:
    rng = np.random.default_rng(27)
    withheld = sum(
        bool(estimate(rng.normal(0.02, 0.02, (20, 1)).tolist(), looks=(), budget=Budget()).withheld)
        for _ in range(300)
    )
    assert withheld <= 0.05 * 300


# --- blocks: disturbances and rare costs that belong to one side --------------------------------


@dataclass(frozen=True, kw_only=True)
class VariantNoise:
    """How one variant behaves, besides taking 1 ms for an iteration."""

    dirty_share: float = 0.0
    reason: str = "read pages from disk"
    dirty_cost: float = 0.0
    """What a dirty block takes longer."""
    slow_blocks: float = 0.0
    slow_iterations: float = 0.0
    slow_cost: float = 0.0
    speedup: float = 1.0


def block_of(
    rng: Rng, side: VariantNoise, name: str, launch: int, number: int, level: float
) -> Block:
    dirty = rng.random() < side.dirty_share
    samples = np.exp(level + rng.normal(0.0, 0.004, 20))
    samples *= 1e6 / side.speedup
    if dirty:
        samples *= 1.0 + side.dirty_cost
    if rng.random() < side.slow_blocks:
        samples *= 1.0 + side.slow_cost
    samples *= 1.0 + side.slow_cost * (rng.random(20) < side.slow_iterations)
    return made_block(
        name,
        launch=launch,
        round=number,
        samples_ns=tuple(samples.tolist()),
        wall_ns=int(samples.sum()),
        dirty=(side.reason,) if dirty else (),
    )


def measured(
    rng: Rng, base: VariantNoise, other: VariantNoise, *, launches: int = 8, rounds: int = 12
) -> tuple[PairedLaunches, Estimate]:
    blocks = []
    for launch in range(launches):
        layout = rng.normal(0.0, 0.002)
        for number in range(rounds):
            shared = rng.normal(0.0, 0.01)
            blocks.append(block_of(rng, base, "a", launch, number, shared))
            blocks.append(block_of(rng, other, "b", launch, number, shared + layout))
    paired = pair_blocks(blocks, "a", "b")
    return paired, make_estimate(paired, (), Budget(), Spent())


def verdicts(
    base: VariantNoise, other: VariantNoise, repeats: int = 20, **more: int
) -> list[Verdict]:
    rng = np.random.default_rng(31)
    return [measured(rng, base, other, **more)[1].verdict for _ in range(repeats)]


def test_quiet_identical_code_is_the_same() -> None:
    assert verdicts(VariantNoise(), VariantNoise()).count(Verdict.SAME) >= 18


@pytest.mark.parametrize("reason", [*REASONS, "GPU clock held: hardware thermal"])
def test_a_candidate_that_is_disturbed_in_a_third_of_its_blocks_is_never_the_same(
    reason: str,
) -> None:
    """Whatever the guard: its own faults belong to its time (true mean 0.88x)."""
    other = VariantNoise(dirty_share=0.35, dirty_cost=0.4, reason=reason)
    by_verdict = verdicts(VariantNoise(dirty_share=0.02, reason=reason), other, repeats=6)
    assert not {Verdict.SAME, Verdict.FASTER} & set(by_verdict)
    # The same disturbance of the baseline must not hide behind its cleanest blocks either.
    assert not {Verdict.SAME, Verdict.SLOWER} & set(verdicts(other, VariantNoise(), repeats=6))


def test_the_reason_names_the_owner_and_both_shares() -> None:
    rng = np.random.default_rng(32)
    other = VariantNoise(dirty_share=0.35, dirty_cost=0.4)
    paired, answer = measured(rng, VariantNoise(), other, launches=12, rounds=20)
    assert paired.dropped == 0
    assert answer.verdict is not Verdict.SAME
    (text,) = paired.never_same
    assert text.startswith("disturbance is attributed to the candidate: it occurs in 3")
    assert text.endswith("of its blocks and in 0% of the baseline's")


def test_two_different_disturbances_do_not_cancel_out() -> None:
    rng = np.random.default_rng(33)
    base = VariantNoise(dirty_share=0.2, reason="waited for a core")
    other = VariantNoise(dirty_share=0.2, dirty_cost=0.4)
    paired, answer = measured(rng, base, other, launches=10, rounds=20)
    assert answer.verdict is not Verdict.SAME
    assert {text.split(" is attributed ")[0] for text in paired.never_same} == {
        "waited for a core",
        "read pages from disk",
    }


def test_a_harmless_disturbance_of_one_variant_still_rules_out_same() -> None:
    """Dirty blocks that cost nothing cannot be told from those that would: undecided, not same."""
    by_verdict = verdicts(
        VariantNoise(), VariantNoise(dirty_share=0.3), repeats=6, launches=10, rounds=20
    )
    assert Verdict.SAME not in by_verdict


@pytest.mark.parametrize("share", [0.05, 0.15])
def test_a_disturbance_of_both_variants_is_left_out_and_same_stays_possible(share: float) -> None:
    both = VariantNoise(dirty_share=share, dirty_cost=0.4)
    rng = np.random.default_rng(34)
    answers = [measured(rng, both, both) for _ in range(20)]
    assert sum(answer.verdict is Verdict.SAME for _, answer in answers) >= 15
    assert sum(bool(paired.one_sided) for paired, _ in answers) <= 1
    assert any(paired.dropped for paired, _ in answers)


@pytest.mark.parametrize(
    "other",
    [
        VariantNoise(slow_iterations=0.3, slow_cost=0.5),
        VariantNoise(slow_iterations=0.1, slow_cost=0.3),
        VariantNoise(slow_iterations=0.05, slow_cost=2.0),
        VariantNoise(slow_blocks=0.3, slow_cost=0.4),
        VariantNoise(slow_blocks=0.2, slow_cost=1.0),
    ],
    ids=lambda side: f"{side.slow_iterations}-{side.slow_blocks}-{side.slow_cost}",
)
def test_a_candidate_that_is_rarely_slow_is_not_the_same(other: VariantNoise) -> None:
    """No guard sees it and medians hide it; the mean does not."""
    assert not {Verdict.SAME, Verdict.FASTER} & set(verdicts(VariantNoise(), other))


def test_a_candidate_with_a_better_median_and_a_worse_mean_is_not_faster() -> None:
    """2 % faster in most iterations and twice as slow in a tenth of them: 0.93x in the mean."""
    other = VariantNoise(speedup=1.02, slow_iterations=0.1, slow_cost=1.0)
    assert Verdict.FASTER not in verdicts(VariantNoise(), other)
    rng = np.random.default_rng(35)
    _, answer = measured(rng, VariantNoise(), other)
    assert answer.speedup > 1.01
    assert answer.mean_speedup == pytest.approx(1.02 / 1.1, rel=0.02)
    assert "means and medians disagree" in answer.withheld[0]


def test_a_claim_that_is_withheld_does_not_come_back_in_a_suite() -> None:
    from torchyard.stats.suite import verdict_alone

    rng = np.random.default_rng(36)
    _, answer = measured(
        rng, VariantNoise(), VariantNoise(speedup=1.02, slow_iterations=0.1, slow_cost=1.0)
    )
    (again,) = adjust_for_suite([answer], ALPHA)
    assert again.verdict is Verdict.UNDECIDED
    assert verdict_alone(again, Budget()) is Verdict.UNDECIDED


def test_rare_slow_iterations_of_both_variants_leave_same_possible() -> None:
    both = VariantNoise(slow_iterations=0.1, slow_cost=1.0, slow_blocks=0.05)
    assert verdicts(both, both, repeats=30).count(Verdict.SAME) >= 24


# --- suites: means and selected rows --------------------------------------------------------------


@pytest.mark.parametrize("size", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_the_mean_of_comparisons_that_stopped_early_covers_the_truth(size: int) -> None:
    rng = np.random.default_rng((41, size))
    repeats = 300 if size < 10 else 60
    covered = 0
    for _ in range(repeats):
        effects = rng.normal(0.02, 0.05, size)
        answers = []
        for effect in effects:
            spread = 0.015 * math.exp(rng.normal(0.0, 0.5))
            launches = [[float(value)] for value in rng.normal(effect, spread, 8)]
            answers.append(stopped(launches, Budget(precision_goal=0.02)))
        mean = geometric_mean(answers)
        assert mean is not None
        covered += mean[1].covers(math.exp(float(np.mean(effects))))
    assert covered >= at_least(0.945, repeats)


def test_intervals_of_the_most_extreme_rows_still_cover() -> None:
    """40 rows of nearly identical code: the five with the highest near end, with FCR intervals."""
    rng = np.random.default_rng(42)
    plain = corrected = shown = 0
    for _ in range(80):
        effects = rng.normal(0.0, 0.003, 40)
        answers = [
            estimate([[float(v)] for v in rng.normal(e, 0.015, 5)], looks=(), budget=Budget())
            for e in effects
        ]
        lows = [one.interval.low if one.interval else 0.0 for one in answers]
        best = sorted(range(40), key=lambda place: -lows[place])[:5]
        intervals = selected_intervals([answers[place] for place in best], 40, alpha=ALPHA)
        for place, interval in zip(best, intervals, strict=True):
            own, truth = answers[place].interval, math.exp(effects[place])
            assert own is not None
            assert interval is not None
            assert interval.confidence == pytest.approx(1 - ALPHA * 5 / 40)
            plain += own.covers(truth)
            corrected += interval.covers(truth)
            shown += 1
    assert plain < 0.85 * shown
    assert corrected >= at_least(0.95, shown)


def test_the_time_needed_is_a_range_that_holds_the_truth() -> None:
    """12 launches are needed; after three of them a single number is between 3 and 28."""
    rng = np.random.default_rng(43)
    sd, repeats = 0.0157, 300
    held = 0
    for _ in range(repeats):
        launches = [[float(value)] for value in rng.normal(0.0, sd, 3)]
        answer = estimate(launches, looks=(), budget=Budget(), seconds_per_launch=1.0)
        assert answer.time_needed_s is None
        assert answer.time_needed_range_s is not None
        low, high = answer.time_needed_range_s
        held += low <= 12 <= high
    assert 0.72 * repeats <= held <= 0.9 * repeats
    later = estimate(
        [[float(value)] for value in rng.normal(0.0, sd, 8)],
        looks=(),
        budget=Budget(),
        seconds_per_launch=1.0,
    )
    assert later.time_needed_s is not None
    assert later.time_needed_range_s is not None
    assert later.time_needed_range_s[0] < later.time_needed_s < later.time_needed_range_s[1]
