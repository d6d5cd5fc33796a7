"""The answer in one sentence says what the table says, and is no more certain than the verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.sample_run import COMPARISONS, GPT, MATMUL, estimate
from torchyard.bench.report.suite_summary import answer_text, mean_text, suite_means
from torchyard.core.comparison import (
    Accuracy,
    AccuracyStatus,
    Comparison,
    Estimate,
    VariantMetrics,
    Verdict,
)
from torchyard.presentation.wording import break_even_text, speedup_text

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
