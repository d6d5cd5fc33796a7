"""Suites: means, pass rates, and the charts of a run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.bench.sample_run import COMPARISONS
from torchyard.bench.report.suite_charts import (
    ROWS_NAMED,
    forest_description,
    forest_spec,
    verdicts_spec,
)
from torchyard.bench.report.suite_summary import pass_text, suite_means, suite_rows
from torchyard.core.comparison import Accuracy, AccuracyStatus, Comparison, Interval, Verdict
from torchyard.presentation.vega import inline_chart


def test_one_row_per_suite_and_candidate() -> None:
    rows = suite_rows(COMPARISONS, confidence=0.95)
    assert [(row.suite, row.candidate) for row in rows] == [
        ("kernels", "inductor"),
        ("models", "inductor"),
        ("kernels", "tcmalloc"),
    ]
    kernels, models, tcmalloc = rows
    assert (kernels.passed, kernels.total) == (2, 3)  # one draws random numbers
    assert (models.passed, models.total) == (1, 3)
    assert models.counts == {Verdict.UNDECIDED: 1, Verdict.WRONG: 1, Verdict.FAILED: 1}
    assert kernels.mean is not None
    assert kernels.mean.speedup == pytest.approx((1.352 * 0.934 * 1.001) ** (1 / 3))
    assert tcmalloc.mean is not None
    assert tcmalloc.mean.scope == "processes"


def test_a_suite_where_nothing_counts_has_no_mean() -> None:
    (row,) = suite_rows([COMPARISONS[5]], confidence=0.95)
    assert row.mean is None
    assert row.passed == 0


@pytest.mark.parametrize("status", list(AccuracyStatus))
def test_only_results_found_right_have_passed(status: AccuracyStatus) -> None:
    one = replace(COMPARISONS[0], accuracy=Accuracy(status=status))
    (row,) = suite_rows([one], confidence=0.95)
    right = status in {AccuracyStatus.PASS, AccuracyStatus.LESS_ACCURATE}
    assert row.passed == (1 if right else 0)
    assert row.total == 1


def test_where_nothing_was_checked_having_run_is_passing() -> None:
    ran, failed = replace(COMPARISONS[0], accuracy=None), replace(COMPARISONS[5], accuracy=None)
    (row, other) = suite_rows([ran, failed], confidence=0.95)
    assert (row.passed, other.passed) == (1, 0)


@pytest.mark.parametrize(
    ("passed", "total", "text"),
    [
        (5, 6, "5 of 6 (83%)"),
        (6, 6, "6 of 6 (100%)"),
        (999, 1000, "999 of 1000 (99%)"),
        (0, 3, "0 of 3 (0%)"),
        (0, 0, "none"),
    ],
)
def test_pass_rates_never_round_up_to_all(passed: int, total: int, text: str) -> None:
    assert pass_text(passed, total) == text


@pytest.mark.parametrize(
    ("passed", "total", "not_checked", "text"),
    [
        (0, 1, 1, "1 not checked"),
        (2, 4, 1, "2 of 3 (67%), 1 not checked"),
        (2, 3, 1, "2 of 2 (100%), 1 not checked"),
    ],
)
def test_rows_that_were_not_checked_are_in_no_pass_rate(
    passed: int, total: int, not_checked: int, text: str
) -> None:
    assert pass_text(passed, total, not_checked) == text


@pytest.mark.parametrize("status", list(AccuracyStatus))
def test_a_row_is_right_wrong_or_not_checked(status: AccuracyStatus) -> None:
    wrong = status is AccuracyStatus.FAIL
    verdict = Verdict.WRONG if wrong else Verdict.FASTER
    one = replace(COMPARISONS[0], accuracy=Accuracy(status=status), verdict=verdict)
    assert one.passed + one.not_checked + wrong == 1


def rows_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = spec["data"]["values"]
    return values


def test_the_forest_has_the_fastest_first_and_no_wrong_speed() -> None:
    spec = forest_spec(COMPARISONS, suite_means(COMPARISONS), margin=0.01)
    rows = rows_of(spec)
    plain = [row for row in rows if row["kind"] != "mean"]
    assert [row["speedup"] for row in plain] == [1.352, 1.021, 1.004, 1.001, 0.934]
    assert [row["label"] for row in rows[-2:]] == [
        "geometric mean, inductor",
        "geometric mean, tcmalloc",
    ]
    assert plain[0]["label"].endswith("· inductor")
    assert plain[0]["text"] == "1.352x [1.341, 1.363]"
    one_candidate = rows_of(forest_spec(COMPARISONS[:3], [], margin=0.01))
    assert one_candidate[0]["label"] == "kernels/matmul inference size=1000"


def odd(speedup: float, low: float, high: float) -> Comparison:
    estimate = COMPARISONS[0].estimate
    assert estimate is not None
    return replace(
        COMPARISONS[0],
        estimate=replace(estimate, speedup=speedup, interval=Interval(low=low, high=high)),
    )


@pytest.mark.parametrize(
    "comparisons",
    [
        COMPARISONS[:1],
        COMPARISONS,
        (odd(1.0, 0.0, math.inf), odd(1e-9, 1e-9, 1e9)),
        (odd(math.inf, 1.0, math.inf),),
        (odd(1.0, 1.0, 1.0),) * 3,
        COMPARISONS * 12,
    ],
)
def test_every_forest_can_be_drawn(comparisons: tuple[Comparison, ...]) -> None:
    spec = forest_spec(comparisons, suite_means(comparisons), margin=0.01)
    text = str(inline_chart(spec, title="", description="d"))
    assert "NaN" not in text
    assert "Infinity" not in text
    assert text.count("<path") >= len(comparisons[:1])


def test_many_comparisons_are_one_curve() -> None:
    many = tuple(odd(1 + index / 100, 1.0, 2.0) for index in range(ROWS_NAMED + 1))
    rows = rows_of(forest_spec(many, [], margin=0.01))
    assert [row["place"] for row in rows] == list(range(ROWS_NAMED + 1))
    assert rows[0]["speedup"] > rows[-1]["speedup"]
    assert "label" not in rows[0]
    named = forest_spec(many[:ROWS_NAMED], [], margin=0.01)
    assert "label" in rows_of(named)[0]


def test_verdict_bars_are_shares_that_add_up() -> None:
    values = rows_of(verdicts_spec(suite_rows(COMPARISONS, confidence=0.95)))
    for place in range(3):
        own = [value for value in values if value["place"] == place]
        assert sum(value["share"] for value in own) == pytest.approx(1)
        assert [value["rank"] for value in own] == sorted(value["rank"] for value in own)
    assert values[0]["text"] == "▲ 1"


def test_the_forest_in_words() -> None:
    assert forest_description(COMPARISONS, margin=0.01).startswith("Speedups of 5 comparisons")
    assert "1 comparison with" in forest_description(COMPARISONS[:1], margin=0.01)
