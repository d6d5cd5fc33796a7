from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.bench.sample_run import COMPARISONS
from torchyard.bench.report.suite_summary import (
    counts_text,
    excluded_from_means,
    suite_means,
    summary_lines,
)
from torchyard.core.comparison import Accuracy, AccuracyStatus, Comparison, Failure, Verdict
from torchyard.presentation.wording import about_duration, accuracy_text, notes_of, number_text


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
