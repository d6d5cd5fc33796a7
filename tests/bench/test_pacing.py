"""How the time budget is divided over launches, which launch is the last, and the length of blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.bench.launch_templates import MIN_FORKED
from torchyard.bench.pacing import SessionClock, SessionProgress, later_start_s
from torchyard.bench.preparation import CLOCK_COST_NS, MAX_SAMPLES, plan_block
from torchyard.bench.rounds import enough_rounds
from torchyard.bench.time_estimate import SHORTEST_S
from torchyard.core.study import Budget
from torchyard.stats.estimate import InterimResult
from torchyard.stats.launch_model import LaunchSummary


class FakeTime:
    """A clock that is advanced by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def result(effect: float, spread: float, launches: int, pair_sd: float = 0.02) -> InterimResult:
    summary = LaunchSummary(launches=launches, spread=spread) if launches > 1 else None
    return InterimResult(effect=effect, summary=summary, pair_sd=pair_sd)


def run_session(
    budget: Budget,
    *,
    first_start_s: float,
    start_s: float,
    round_s: float = 0.2,
    spread: float = 0.015,
    effect: float = 0.0,
    pair_sd: float = 0.02,
) -> tuple[list[float], float, SessionClock]:
    """Return the measuring time of each launch, and the elapsed time at the end."""
    now = FakeTime()
    clock = SessionClock(budget, clock=now)
    lengths: list[float] = []
    while True:
        if lengths:
            now.now_s += start_s
        clock.launch_ready(start_s if lengths else first_start_s, round_s=round_s)
        seconds = clock.seconds_for_rounds()
        rounds = max(3, round(seconds / round_s))
        now.now_s += rounds * round_s
        clock.launch_done(wall_s=rounds * round_s, rounds=rounds)
        lengths.append(rounds * round_s)
        clock.learn([result(effect, spread, len(lengths), pair_sd)])
        if clock.is_last_launch():
            return lengths, clock.elapsed_s, clock


@pytest.mark.parametrize("start_s", [0.3, 3.0, 15.0])
@pytest.mark.parametrize("spread", [0.003, 0.06])
@pytest.mark.parametrize("pair_sd", [0.005, 0.05])
def test_no_launch_is_much_longer_than_the_others(
    start_s: float, spread: float, pair_sd: float
) -> None:
    budget = Budget(time_s=100.0, precision_goal=0.0)
    lengths, elapsed_s, _ = run_session(
        budget, first_start_s=3 * start_s, start_s=start_s, spread=spread, pair_sd=pair_sd
    )
    assert len(lengths) >= 4
    # The first launch is planned with guesses; later ones are alike.
    later = sorted(lengths[1:])
    assert later[-1] <= 3.0 * later[len(later) // 2] + 0.5
    assert elapsed_s <= 1.1 * budget.time_s + start_s


def test_a_session_of_100_s_with_starts_of_9_s_makes_many_launches() -> None:
    """Four launches, one of them 57 s long, were measured with the rule that this one replaces."""
    budget = Budget(time_s=100.0, precision_goal=0.0)
    lengths, _, _ = run_session(budget, first_start_s=30.0, start_s=9.0, round_s=0.5)
    assert len(lengths) >= 7
    assert max(lengths) < 15.0


@pytest.mark.parametrize(("time_s", "pays_off"), [(60.0, True), (12.0, False)])
def test_templates_pay_off_if_many_launches_follow(time_s: float, pays_off: bool) -> None:
    now = FakeTime()
    clock = SessionClock(Budget(time_s=time_s), clock=now)
    for done in range(2):
        now.now_s += 4.0 if done else 0.0
        clock.launch_ready(4.0, round_s=0.2)
        now.now_s += 1.2
        clock.launch_done(wall_s=1.2, rounds=6)
        clock.learn([result(0.01, 0.015, done + 1)])
    assert (clock.forked_launches_left() >= MIN_FORKED) is pays_off


def test_the_start_of_a_template_is_not_expected_again() -> None:
    """Otherwise one slow start would make all later launches few and long."""
    lengths = []
    for next_start_s in (12.0, 1.0):
        now = FakeTime()
        clock = SessionClock(Budget(time_s=60.0), clock=now)
        clock.launch_ready(5.0, round_s=0.2)
        clock.launch_done(wall_s=1.2, rounds=6)
        clock.learn([result(0.01, 0.015, 1)])
        now.now_s += 12.0
        clock.launch_ready(12.0, round_s=0.2, later_start_s=next_start_s)
        assert clock.last_start_s == 12.0
        lengths.append(clock.seconds_for_rounds())
    assert lengths[1] < 0.7 * lengths[0]


@pytest.mark.parametrize(
    ("parts", "checked_s", "time_s"),
    [
        ({"processes_s": 1.5, "compiling_s": 17.6, "warming_s": 1.0}, 0.9, 20.0),
        ({"processes_s": 1.2, "compiling_s": 20.0, "warming_s": 1.0}, 7.0, 20.0),
        ({"processes_s": 2.0, "compiling_s": 34.0, "warming_s": 1.5}, 21.8, 30.0),
    ],
    ids=["alexnet", "resnet18", "visformer"],
)
def test_checks_of_the_first_launch_do_not_take_the_place_of_launches(
    parts: dict[str, float], checked_s: float, time_s: float
) -> None:
    """Durations of training on a GPU, where checks and metrics left time for one launch only."""
    now = FakeTime()
    clock = SessionClock(Budget(time_s=time_s), clock=now)
    clock.launch_ready(40.0, round_s=0.2, later_start_s=later_start_s(**parts))
    launches, measured_s = 0, 0.0
    while True:
        seconds = clock.seconds_for_rounds()
        rounds = max(6, round(seconds / 0.2))
        measured_s += rounds * 0.2
        now.now_s += rounds * 0.2 + checked_s
        clock.launch_done(wall_s=rounds * 0.2, rounds=rounds, after_s=checked_s)
        launches += 1
        clock.learn([result(-0.1, 0.015, launches)])
        if clock.is_last_launch():
            break
        start_s = later_start_s(**parts)
        now.now_s += start_s
        measured_s += start_s
        checked_s = min(checked_s, 0.5)
        measured_s += checked_s
        clock.launch_ready(start_s)
    assert launches >= 3
    assert clock.elapsed_s == pytest.approx(measured_s)
    assert measured_s <= 1.25 * time_s


def test_noisy_pairs_make_launches_longer() -> None:
    budget = Budget(time_s=100.0, precision_goal=0.0)
    quiet, _, _ = run_session(budget, first_start_s=10.0, start_s=3.0, pair_sd=0.002)
    noisy, _, _ = run_session(budget, first_start_s=10.0, start_s=3.0, pair_sd=0.2, spread=0.003)
    assert len(noisy) < len(quiet)


def test_one_launch_uses_the_whole_time_if_no_other_fits() -> None:
    now = FakeTime()
    clock = SessionClock(Budget(time_s=8.0), clock=now)
    clock.launch_ready(45.0, round_s=0.2)
    assert "valid for these processes only" in clock.why_one_launch()
    assert "--time" in clock.why_one_launch()
    assert clock.seconds_for_rounds() == pytest.approx(8.0)
    now.now_s += 8.0
    clock.launch_done(wall_s=8.0, rounds=40)
    assert clock.is_last_launch()


def test_a_second_launch_is_not_started_for_a_small_effect_if_no_third_fits() -> None:
    for effect, is_last in ((0.02, True), (0.7, False)):
        now = FakeTime()
        clock = SessionClock(Budget(time_s=20.0), clock=now)
        clock.launch_ready(40.0, round_s=0.2)
        assert not clock.why_one_launch()
        now.now_s += clock.seconds_for_rounds()
        clock.launch_done(wall_s=4.0, rounds=20)
        clock.learn([result(effect, 0.0, 1)])
        assert clock.is_last_launch() is is_last


def test_measuring_ends_when_a_verdict_is_very_unlikely() -> None:
    budget = Budget(time_s=60.0)
    hopeless, elapsed_s, _ = run_session(
        budget, first_start_s=10.0, start_s=3.0, spread=0.3, effect=0.02
    )
    assert elapsed_s < 50.0
    patient, _, _ = run_session(
        Budget(time_s=60.0, precision_goal=0.0),
        first_start_s=10.0,
        start_s=3.0,
        spread=0.3,
        effect=0.02,
    )
    assert len(patient) > len(hopeless)


def test_one_candidate_with_a_chance_keeps_the_session_going() -> None:
    now = FakeTime()
    clock = SessionClock(Budget(time_s=30.0), clock=now)
    clock.launch_ready(10.0, round_s=0.5)
    now.now_s += 20.0
    for _ in range(3):
        clock.launch_done(wall_s=5.0, rounds=10)
    clock.learn([result(0.02, 1.0, 3), result(0.0, 1.0, 3)])
    assert clock.is_last_launch()
    clock.learn([result(0.02, 1.0, 3), result(0.05, 0.01, 3)])
    assert not clock.is_last_launch()


def test_an_explicit_number_of_launches_is_completed() -> None:
    budget = Budget(time_s=4.0, min_launches=3, max_launches=3)
    lengths, _, _ = run_session(budget, first_start_s=9.0, start_s=1.5)
    assert len(lengths) == 3


@pytest.mark.parametrize("launch_s", [1.5, 2.0, 3.0])
def test_a_length_that_is_asked_for_is_kept(launch_s: float) -> None:
    clock = SessionClock(Budget(time_s=60.0, launch_s=launch_s))
    clock.launch_ready(4.0)
    assert clock.seconds_for_rounds() == launch_s
    short = SessionClock(Budget(time_s=60.0, launch_s=0.1))
    short.launch_ready(0.0)
    assert short.seconds_for_rounds() == SHORTEST_S


def test_progress_moves_in_every_phase_and_never_backwards() -> None:
    now = FakeTime()
    clock = SessionClock(Budget(time_s=30.0), clock=now)
    progress = SessionProgress(clock, compiled=1, began=now)
    shares = []
    for _ in range(40):
        now.now_s += 1.0
        shares.append(progress.fraction)
    assert 0.3 < shares[-1] < 0.8
    clock.launch_ready(40.0, round_s=0.2)
    for done in range(5):
        now.now_s += 6.0
        clock.launch_done(wall_s=3.0, rounds=15)
        clock.learn([result(0.01, 0.02, done + 1)])
        shares.append(progress.fraction)
    assert shares == sorted(shares)
    assert shares[-1] > 0.95


def test_the_expected_time_falls_after_a_large_effect() -> None:
    clock = SessionClock(Budget(time_s=60.0), clock=FakeTime())
    clock.launch_ready(10.0, round_s=0.2)
    clock.seconds_for_rounds()
    clock.launch_done(wall_s=2.0, rounds=10)
    clock.learn([result(0.0, 0.0, 1)])
    small_s = clock.expected_remaining_s()
    clock.learn([result(0.7, 0.0, 1)])
    assert clock.expected_remaining_s() < small_s / 3


@pytest.mark.parametrize(
    ("rounds", "clean", "at_least", "enough"),
    [
        (2, 2, 3, False),
        (3, 3, 3, True),
        (3, 2, 3, False),  # one was disturbed: a launch that counts is worth another round
        (5, 3, 3, True),
        (6, 0, 3, True),  # a machine that is busy throughout
        (6, 5, 6, True),
        (6, 2, 6, False),
    ],
)
def test_a_launch_ends_when_it_has_enough_pairs(
    rounds: int, clean: int, at_least: int, enough: bool
) -> None:
    assert enough_rounds(rounds, clean, at_least) is enough


iterations_ns = st.floats(min_value=1.0, max_value=1e12)
blocks_s = st.floats(min_value=0.001, max_value=10.0)


@given(iterations_ns, blocks_s, st.booleans())
def test_every_plan_can_be_run(iteration_ns: float, block_s: float, training: bool) -> None:
    plan = plan_block(iteration_ns, block_s=block_s, training=training)
    assert plan.inner >= 1
    assert 1 <= plan.samples <= MAX_SAMPLES
    assert plan.prime in {0, 1}
    if training:
        assert plan.inner == 1


@given(iterations_ns, blocks_s)
def test_reading_the_clock_costs_less_than_half_a_percent(
    iteration_ns: float, block_s: float
) -> None:
    plan = plan_block(iteration_ns, block_s=block_s, training=False)
    assert 0.005 * plan.inner * iteration_ns >= CLOCK_COST_NS


@given(iterations_ns, blocks_s)
def test_a_block_is_about_as_long_as_asked_or_one_sample(
    iteration_ns: float, block_s: float
) -> None:
    plan = plan_block(iteration_ns, block_s=block_s, training=False)
    total_ns = plan.inner * plan.samples * iteration_ns
    if plan.samples > 1:
        assert 0.5 * block_s * 1e9 <= total_ns <= 1.7 * block_s * 1e9
    else:
        assert total_ns >= 0.5 * block_s * 1e9


@given(iterations_ns, blocks_s, st.booleans())
def test_an_untimed_call_costs_at_most_a_tenth(
    iteration_ns: float, block_s: float, training: bool
) -> None:
    plan = plan_block(iteration_ns, block_s=block_s, training=training)
    assert (plan.prime == 1) == (iteration_ns <= 0.1 * block_s * 1e9)


def test_known_cases() -> None:
    slow = plan_block(50e6, block_s=0.1, training=False)
    assert (slow.inner, slow.samples, slow.prime) == (1, 2, 0)
    quick = plan_block(1000.0, block_s=0.1, training=False)
    assert (quick.inner, quick.samples, quick.prime) == (168, 595, 1)
    assert plan_block(0.0, block_s=0.1, training=False).samples >= 1
