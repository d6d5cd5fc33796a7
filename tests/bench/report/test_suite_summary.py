from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.bench.sample_run import COMPARISONS, GPT, MATMUL, estimate
from torchyard.bench.report.suite_summary import (
    answer_text,
    counts_text,
    excluded_from_means,
    mean_text,
    suite_means,
    summary_lines,
)
from torchyard.core.comparison import (
    Accuracy,
    AccuracyStatus,
    Comparison,
    Estimate,
    Failure,
    VariantMetrics,
    Verdict,
)
from torchyard.presentation.wording import (
    about_duration,
    accuracy_text,
    break_even_text,
    notes_of,
    number_text,
    speedup_text,
)


def test_counts_come_with_marks() -> None:
    assert counts_text(COMPARISONS) == (
        "7 comparisons: ▲ 1 faster, ▼ 1 slower, = 1 same, ? 2 undecided, ✗ 1 wrong, ✗ 1 failed"
    )
    assert counts_text(COMPARISONS[:1]) == "1 comparison: ▲ 1 faster"


def test_wrong_and_failed_never_lift_the_mean() -> None:
    inductor, tcmalloc = suite_means(COMPARISONS)
    logs = [math.log(speedup) for speedup in (1.352, 0.934, 1.001, 1.021)]
    assert inductor.speedup == pytest.approx(math.exp(sum(logs) / 4))
    assert inductor.comparisons == 4
    assert inductor.interval.low < inductor.speedup < inductor.interval.high
    assert inductor.scope == "launches"
    assert (tcmalloc.comparisons, tcmalloc.scope) == (1, "processes")


def test_what_is_not_in_the_mean_is_listed_without_repeating_notes() -> None:
    lines = summary_lines(COMPARISONS)
    assert "geometric mean 1.066x [" in lines[1]
    assert "over 4 comparisons" in lines[1]
    assert lines[2].endswith("over 1 comparison, valid for the measured processes only")
    assert lines[3] == "excluded from the mean:"
    assert lines[4] == "  ✗ wrong  models/gpt training +step · inductor"
    assert lines[5] == "  ✗ failed  models/lstm inference cuda · inductor"
    single = replace(COMPARISONS[6], candidate="inductor")
    last = summary_lines([COMPARISONS[0], single])[-1]
    assert last.endswith(": too few launches to estimate the variation between them")


def test_one_launch_beside_many_is_not_averaged() -> None:
    assert COMPARISONS[6].estimate is not None
    single = replace(COMPARISONS[6], candidate="inductor")
    mixed = (COMPARISONS[0], single)
    (mean,) = suite_means(mixed)
    assert mean.comparisons == 1
    assert mean.speedup == pytest.approx(1.352)
    assert excluded_from_means(mixed) == [
        (single, "too few launches to estimate the variation between them")
    ]


def test_nothing_to_average() -> None:
    failed = COMPARISONS[5]
    assert suite_means((failed,)) == []
    lines = summary_lines((failed, replace(failed, failure=None)))
    assert lines[0] == "2 comparisons: ✗ 2 failed"
    assert lines[-1].endswith("no reason recorded")


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.2, "1 s"), (45, "45 s"), (172, "3 m"), (5000, "84 m"), (9000, "2.5 h")],
)
def test_rough_durations(duration_s: float, text: str) -> None:
    assert about_duration(duration_s) == text


def test_numbers_that_are_not_finite() -> None:
    assert number_text(math.inf) == "unknown"
    assert number_text(math.nan) == "unknown"
    assert number_text(1234.5678) == "1234.6"
    assert about_duration(math.inf) == "unknown"


def test_the_most_severe_note_comes_first() -> None:
    gravest = [(notes_of(comparison) or [""])[0] for comparison in COMPARISONS]
    assert gravest[4].startswith("results wrong (52 tensors")
    assert gravest[5].startswith("out-of-memory (inductor, warm):")
    assert gravest[1] == ""


def test_accuracy_that_was_not_checked() -> None:
    assert accuracy_text(None) == "not checked"


@pytest.mark.parametrize("status", ["random", "nondeterministic", "unchecked"])
def test_what_could_not_be_compared_is_not_checked(status: str) -> None:
    accuracy = Accuracy(status=AccuracyStatus(status), detail="it draws\nother numbers")
    assert accuracy_text(accuracy) == "not checked: it draws other numbers"


def test_a_less_accurate_row_keeps_its_verdict_and_says_so_first() -> None:
    detail = "gradient of conv.bias: error 1e-05 (relative 0.001), allowed 2e-07"
    accuracy = Accuracy(status=AccuracyStatus.LESS_ACCURATE, detail=detail, compared=3)
    row = replace(COMPARISONS[0], accuracy=accuracy)
    assert row.passed
    assert notes_of(row)[0] == f"results less accurate (3 tensors): {detail}"


def test_a_failure_message_stays_on_its_line() -> None:
    failure = Failure(kind="raised", phase="build", variant="v", message="a\n\n  b\x1b[0m\tc")
    comparison = Comparison(
        workload=COMPARISONS[0].workload,
        baseline="b",
        candidate="c",
        verdict=Verdict.FAILED,
        failure=failure,
    )
    assert notes_of(comparison) == ["raised (v, build): a b c"]


FASTER, SLOWER, SAME, UNDECIDED, WRONG, FAILED, ONE_LAUNCH = COMPARISONS


def answer(*comparisons: Comparison) -> str:
    return answer_text(comparisons, confidence=0.95, margin=0.02)


@pytest.mark.parametrize(
    ("comparison", "text"),
    [
        (
            FASTER,
            (
                "inductor is faster than eager on kernels/matmul inference size=1000: speedup 1.352x "
                "[1.341, 1.363] (95 % CI), compile time 21.4 s that pays off after 6 660 iterations "
                "[6 510, 6 820]; cpu, torch 2.9.0"
            ),
        ),
        (
            SLOWER,
            (
                "inductor is slower than eager on kernels/attention inference: speedup 0.934x "
                "[0.924, 0.944] (95 % CI); cpu, torch 2.9.0"
            ),
        ),
        (
            SAME,
            (
                "inductor is as fast as eager on kernels/embedding training, within 2.0%: speedup "
                "1.001x [0.995, 1.007] (95 % CI), results not checked; cpu, torch 2.9.0"
            ),
        ),
        (
            UNDECIDED,
            (
                "undecided whether inductor is faster or slower than eager on models/resnet inference "
                "b8: speedup 1.021x [0.990, 1.052] (95 % CI); cpu, torch 2.9.0"
            ),
        ),
        (
            ONE_LAUNCH,
            (
                "undecided whether tcmalloc is faster or slower than eager on kernels/matmul inference "
                "size=1000: speedup 1.004x [1.000, 1.008] (95 % CI of the measured processes), results "
                "not checked; cpu, torch 2.9.0"
            ),
        ),
        (
            WRONG,
            (
                "wrong: inductor computes wrong results on models/gpt training +step, so its speed "
                "does not count; cpu, torch 2.9.0"
            ),
        ),
        (
            FAILED,
            (
                "failed: no comparison of inductor with eager on models/lstm inference cuda: "
                "out-of-memory (warm); cuda, torch 2.9.0"
            ),
        ),
    ],
    ids=lambda value: value.verdict.value if isinstance(value, Comparison) else "",
)
def test_one_comparison(comparison: Comparison, text: str) -> None:
    assert answer(comparison) == text


@pytest.mark.parametrize("comparison", [FASTER, SLOWER, SAME, UNDECIDED, ONE_LAUNCH])
def test_the_numbers_are_those_of_the_table(comparison: Comparison) -> None:
    assert speedup_text(comparison) in answer(comparison)


@pytest.mark.parametrize("comparison", [FASTER, SLOWER, SAME, UNDECIDED])
def test_an_untrusted_comparison_has_no_statement_about_speed(comparison: Comparison) -> None:
    text = answer(replace(comparison, untrusted=("noisy machine:\n9 of 9 pairs",)))
    assert text.startswith("untrusted: the measurements of inductor and eager on ")
    assert "must not be used: noisy machine: 9 of 9 pairs; cpu" in text
    for word in ("faster", "slower", "as fast as", "speedup", "compile", "pays"):
        assert word not in text


def test_a_slower_candidate_does_not_pay_off() -> None:
    compiled = replace(SLOWER, candidate_metrics=FASTER.candidate_metrics)
    assert "compile time 21.4 s that does not pay off" in answer(compiled)


def test_an_undecided_candidate_has_a_compile_time_and_no_break_even() -> None:
    text = answer(replace(UNDECIDED, candidate_metrics=FASTER.candidate_metrics))
    assert "compile time 21.4 s;" in text
    assert "pay" not in text


def test_an_open_interval_of_the_break_even_is_kept() -> None:
    uncertain = replace(FASTER, estimate=estimate(Verdict.FASTER, 1.352, 0.5))
    assert break_even_text(uncertain).endswith("never]")
    assert break_even_text(uncertain) in answer(uncertain)


def test_missing_numbers_are_not_invented() -> None:
    early: Estimate = replace(estimate(Verdict.UNDECIDED, 1.2, 0.1), interval=None)
    bare = replace(UNDECIDED, estimate=early, candidate_metrics=VariantMetrics())
    assert "speedup 1.200x no interval; cpu, torch 2.9.0" in answer(bare)
    text = answer(replace(bare, estimate=None, baseline_metrics=VariantMetrics()))
    assert text.endswith("speedup –; cpu, torch version unknown")
    assert answer() == "no comparisons"


def test_less_accurate_results_are_named() -> None:
    accuracy = Accuracy(status=AccuracyStatus.LESS_ACCURATE)
    assert "results less accurate; cpu" in answer(replace(FASTER, accuracy=accuracy))


def test_two_versions_of_torch_are_both_named() -> None:
    older = replace(FASTER.baseline_metrics, torch_version="2.8.0")
    assert answer(replace(FASTER, baseline_metrics=older)).endswith("torch 2.9.0 and 2.8.0")


def test_several_comparisons_are_counted_and_averaged() -> None:
    text = answer(*COMPARISONS)
    assert text.startswith(
        "7 comparisons: 1 faster, 1 slower, 1 same, 2 undecided, 1 wrong, 1 failed; "
    )
    means = suite_means(COMPARISONS, confidence=0.95)
    assert len(means) == 2
    assert all(mean_text(mean) in text for mean in means)
    assert text.endswith("; cpu, cuda, torch 2.9.0")


def test_several_comparisons_without_a_speedup_have_no_mean() -> None:
    text = answer(replace(FASTER, untrusted=("noisy machine",)), WRONG)
    assert text == (
        "2 comparisons: 1 untrusted, 1 wrong; no speedup counts in a geometric mean; "
        "cpu, torch 2.9.0"
    )


def test_names_from_outside_are_shown_on_one_line() -> None:
    hostile = replace(GPT, name="a\x1b[2J\nb")
    text = answer(replace(FASTER, workload=hostile, candidate="x\ny\x07"))
    assert "\n" not in text
    assert "\x1b" not in text
    assert "\x07" not in text
    assert MATMUL.label not in text
