"""The row of a comparison: times that match the estimate, results after a failure, and impossible times."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest

from tests.sample_records import made_block, made_peak
from torchyard.bench.outcome import Spent, implausible_times, make_comparison
from torchyard.bench.preparation import PreparationState
from torchyard.core.block import Block
from torchyard.core.comparison import Comparison, Failure, VariantMetrics, Verdict
from torchyard.core.roofline import MachinePeak
from torchyard.core.study import Budget, Environment, Target, Variant, Workload
from torchyard.stats.stopping import InterimAnalysis

HERE = Target(name="here", python="python")
BASE = Variant(name="base", target=HERE)
OTHER = Variant(name="other", target=HERE, backend="inductor")
APART = replace(OTHER, environment=Environment(name="apart", variables=(("A", "1"),)))
WORKLOAD = Workload(suite="kernels", name="matmul")


def block(
    launch: int, number: int, variant: str, time_ns: float, dirty: tuple[str, ...] = ()
) -> Block:
    return made_block(
        variant,
        launch=launch,
        round=number,
        samples_ns=(time_ns,) * 5,
        wall_ns=int(5 * time_ns),
        dirty=dirty,
    )


def blocks_of(launches: list[tuple[float, float]], *, rounds: int = 6) -> list[Block]:
    """Each launch with its speed of the machine and its speedup."""
    return [
        made
        for launch, (base_ns, speedup) in enumerate(launches)
        for number in range(rounds)
        for made in (
            block(launch, number, "base", base_ns * (1 + 0.001 * (number % 3))),
            block(launch, number, "other", base_ns * (1 + 0.001 * (number % 2)) / speedup),
        )
    ]


def row(
    blocks: list[Block],
    *,
    candidate: Variant = OTHER,
    failure: Failure | None = None,
    budget: Budget | None = None,
) -> Comparison:
    launches = len({one.launch for one in blocks})
    return make_comparison(
        WORKLOAD,
        BASE,
        candidate,
        blocks=blocks,
        analyses=[InterimAnalysis(launches=launches, fraction=1.0)] if launches else [],
        budget=budget or Budget(),
        prepared=PreparationState(),
        spent=Spent(),
        failure=failure,
    )


def ratio_of(found: Comparison) -> float:
    before, after = found.baseline_metrics.time_ns, found.candidate_metrics.time_ns
    assert before is not None
    assert after is not None
    return before / after


def failed(variant: str, kind: str = "crashed") -> Failure:
    return Failure(kind=kind, phase="timing", variant=variant, message="was ended by SIGSEGV")


@pytest.mark.parametrize(
    "launches",
    [
        [(1e6, 1.12), (1.4e6, 1.11), (0.7e6, 1.13)],
        # The machine halves its speed in the middle: medians of all blocks say 2x and 1x.
        [(1e6, 1.0), (1e6, 1.002), (2e6, 0.998), (2e6, 1.0)],
        [(5e3, 1.3), (9e6, 1.25), (4e9, 1.28)],
    ],
)
def test_the_ratio_of_the_times_is_the_speedup(launches: list[tuple[float, float]]) -> None:
    comparison = row(blocks_of(launches))
    assert comparison.estimate is not None
    assert ratio_of(comparison) == pytest.approx(comparison.estimate.speedup, rel=1e-9)
    times = [base_ns for base_ns, _ in launches]
    assert min(times) * 0.7 <= (comparison.baseline_metrics.time_ns or 0) <= max(times) * 1.3
    assert comparison.with_times_of_estimate() is comparison


def test_a_variant_that_is_dirty_half_of_the_time_does_not_change_the_ratio() -> None:
    """Median of clean blocks of each side: 11.9 against 24.1 ms beside 'same'."""
    blocks = []
    for launch in range(4):
        for number in range(12):
            slow = number % 2 == 1
            # Rounds alternate between two speeds; each side is dirty in rounds of one of them only.
            for name, dirty in (("base", slow and number < 6), ("other", not slow and number < 6)):
                marks = ("busy",) if dirty else ()
                blocks.append(block(launch, number, name, 24e6 if slow else 12e6, marks))
    comparison = row(blocks)
    clean = {
        name: median(b.median_ns for b in blocks if b.variant == name and not b.dirty)
        for name in ("base", "other")
    }
    assert clean["base"] != clean["other"]
    assert comparison.estimate is not None
    assert comparison.estimate.speedup == pytest.approx(1.0)
    assert ratio_of(comparison) == pytest.approx(1.0)


def test_stored_times_that_contradict_the_speedup_are_replaced_with_a_note() -> None:
    made = row(blocks_of([(36e6, 1.12)] * 4))
    old = replace(
        made,
        baseline_metrics=replace(made.baseline_metrics, time_ns=40.4e6),
        candidate_metrics=replace(made.candidate_metrics, time_ns=33.7e6),
    )
    updated = old.with_times_of_estimate()
    assert made.estimate is not None
    assert ratio_of(updated) == pytest.approx(made.estimate.speedup, rel=1e-12)
    middle = (updated.baseline_metrics.time_ns or 0) * (updated.candidate_metrics.time_ns or 0)
    assert math.sqrt(middle) == pytest.approx(math.sqrt(40.4e6 * 33.7e6))
    assert updated.notes[-1].endswith("medians of all blocks: 40.4 ms and 33.7 ms")
    assert updated.with_times_of_estimate() is updated
    without = replace(old, estimate=None)
    assert without.with_times_of_estimate() is without


def test_a_candidate_that_crashes_has_failed_and_keeps_what_was_measured() -> None:
    comparison = row(blocks_of([(1e6, 1.2)] * 5), failure=failed("other"))
    assert comparison.verdict is Verdict.FAILED
    assert comparison.state == "failed"
    assert comparison.estimate is None
    assert comparison.failure is not None
    assert comparison.before_failure is not None
    assert comparison.before_failure.launches == 5
    assert comparison.before_failure.speedup == pytest.approx(1.2, rel=1e-2)
    assert any(
        note.startswith("before the failure 5 launches showed 1.2") and "not a result" in note
        for note in comparison.notes
    )


def test_a_crash_of_the_baseline_leaves_the_launches_before_usable() -> None:
    comparison = row(blocks_of([(1e6, 1.2)] * 5), candidate=APART, failure=failed("base", "killed"))
    assert (comparison.verdict, comparison.state) == (Verdict.FASTER, "faster")
    assert comparison.failure is None
    assert comparison.notes[0] == (
        "base failed (killed, timing): was ended by SIGSEGV; based on the 5 launches before the failure"
    )


def test_a_crash_of_a_shared_process_is_not_attributed_to_the_baseline() -> None:
    """The candidate may have broken what the baseline then fell over."""
    comparison = row(blocks_of([(1e6, 1.2)] * 5), failure=failed("base"))
    assert (comparison.verdict, comparison.state) == (Verdict.FASTER, "untrusted")
    assert comparison.untrusted[0].startswith("the process that both variants share died")
    raised = row(blocks_of([(1e6, 1.2)] * 5), failure=failed("base", "raised"))
    assert raised.state == "faster"


@pytest.mark.parametrize("launches", [0, 1, 2])
def test_too_few_launches_before_a_failure_of_the_baseline_are_no_verdict(launches: int) -> None:
    comparison = row(blocks_of([(1e6, 1.2)] * launches), candidate=APART, failure=failed("base"))
    assert comparison.verdict is Verdict.FAILED
    assert comparison.estimate is None
    assert (comparison.before_failure is not None) is (launches > 0)


def test_a_disturbance_of_the_candidate_is_reported_and_rules_out_same() -> None:
    blocks = [
        replace(one, dirty=("read pages from disk",))
        if one.variant == "other" and one.round < 4
        else one
        for one in blocks_of([(1e6, 1.0)] * 5, rounds=12)
    ]
    comparison = row(blocks)
    assert comparison.verdict is Verdict.UNDECIDED
    assert comparison.estimate is not None
    assert comparison.estimate.pairs_dropped == 0
    assert comparison.estimate.withheld == (
        "disturbance is attributed to the candidate: it occurs in 33% of its blocks and in 0% of the baseline's",
    )
    faster = [
        replace(one, samples_ns=tuple(t / 1.3 for t in one.samples_ns))
        if one.variant == "other"
        else one
        for one in blocks
    ]
    assert row(faster).verdict is Verdict.FASTER
    assert any("attributed to the candidate" in note for note in row(faster).notes)


PEAK = made_peak(1e11, 1e10)


def found(
    base_ns: float, mine_ns: float, flops: float | None, *, peak: MachinePeak | None = None
) -> list[str]:
    return implausible_times(
        VariantMetrics(time_ns=base_ns, flops=flops),
        VariantMetrics(time_ns=mine_ns, flops=flops),
        device="cpu",
        precision="float32",
        cores=2,
        peak=peak,
    )


@pytest.mark.parametrize(
    ("base_ns", "mine_ns", "flops"),
    [
        (1e6, 5e5, 1e7),
        (1e6, 2e4, None),
        (3000.0, 900.0, None),  # both short
        (1e9, 1e7, 1e10),
    ],
)
def test_possible_times_are_left_alone(base_ns: float, mine_ns: float, flops: float | None) -> None:
    assert found(base_ns, mine_ns, flops) == []


def test_more_arithmetic_than_any_core_can_do() -> None:
    (text,) = found(1e9, 1e6, 1e11)
    assert text.startswith("faster than the hardware allows: 100 TFLOP/s")


def test_far_beyond_the_measured_peak() -> None:
    assert found(1e8, 4e7, 1e7, peak=PEAK) == []
    (text,) = found(1e8, 1e5, 4e7, peak=PEAK)
    assert text == "faster than the hardware allows: 4 times the measured peak"
    # A convolution by Winograd's algorithm needs 2.25 times fewer operations than are counted.
    assert found(1e8, 1e5, 2.2e7, peak=PEAK) == []


def test_less_time_than_starting_one_operator() -> None:
    (text,) = found(1e6, 300.0, None)
    assert "cannot have computed the result" in text


def test_unknown_times_say_nothing() -> None:
    empty = VariantMetrics()
    assert implausible_times(empty, empty, device="cuda", precision="amp", cores=1) == []
