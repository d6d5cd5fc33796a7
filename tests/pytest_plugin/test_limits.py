"""Limits of comparisons: which outcome each interval has, alone and against a saved session."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.results.simulated_runs import MACHINE, STUDY, Plan, write_session
from torchyard.api.result import FRESH_PROCESSES, THESE_PROCESSES, THIS_PROCESS, Comparison
from torchyard.core import comparison as core
from torchyard.core.study import Workload
from torchyard.errors import UsageError
from torchyard.pytest_plugin import limits
from torchyard.results.gate.model import read_limit
from torchyard.results.run_reader import Run

NAME = "test_file.py::test_name"


def compared(low: float, high: float) -> Comparison:
    estimate = core.Estimate(
        verdict=core.Verdict.UNDECIDED,
        speedup=math.sqrt(low * high),
        interval=core.Interval(low=low, high=high),
        p_value=0.01,
        scope="launches",
        launches=4,
        pairs=20,
        pairs_dropped=0,
        launch_sd=0.01,
        pair_sd=0.01,
        minimum_detectable=None,
        time_needed_s=None,
    )
    result = core.Comparison(
        workload=Workload(suite="python", name=NAME),
        baseline="f",
        candidate="g",
        verdict=core.Verdict.UNDECIDED,
        estimate=estimate,
        baseline_metrics=core.VariantMetrics(time_ns=2e6),
        candidate_metrics=core.VariantMetrics(time_ns=1e6),
    )
    return Comparison(result=result, scope=FRESH_PROCESSES)


@pytest.mark.parametrize(
    ("low", "high", "outcome", "word"),
    [
        (0.90, 0.952, "fail", "more than the limit 5.0%"),
        (0.90, 0.953, "note", "contains the limit 5.0%"),  # 1 / 1.05 = 0.95238
        (0.953, 0.99, "pass", "within the limit 5.0%"),
        (1.10, 1.20, "pass", "within the limit 5.0%"),
        (0.50, 2.00, "note", "contains the limit 5.0%"),
    ],
)
def test_only_an_interval_that_is_beyond_the_limit_fails(
    low: float, high: float, outcome: str, word: str
) -> None:
    check = limits.check(compared(low, high), 0.05)
    assert check.outcome == outcome
    assert word in check.text
    assert limits.check(compared(low, high), None) == limits.Check(outcome="pass")


def test_untrusted_results_pass_with_a_note() -> None:
    comparison = compared(0.5, 0.6)
    untrusted = replace(comparison.result, untrusted=("noisy machine",))
    check = limits.check(replace(comparison, result=untrusted), 0.05)
    assert (check.outcome, check.text) == ("note", "cannot be trusted: noisy machine")


def test_results_that_noise_does_not_explain_fail_a_limit() -> None:
    comparison = compared(1.0, 1.1)
    reasons = ("noisy machine: 3 pairs", "takes 9 us with new input values: it caches results")
    untrusted = replace(comparison, result=replace(comparison.result, untrusted=reasons))
    check = limits.check(untrusted, 0.05)
    assert (check.outcome, check.text) == ("fail", f"cannot be trusted: {reasons[1]}")
    assert limits.check(untrusted, None).outcome == "note"


def test_only_noise_and_single_launches_are_measured_again() -> None:
    beyond, around = compared(0.5, 0.6), compared(0.9, 1.1)
    # Repeating a result because of its interval would raise the error rate.
    assert not limits.could_not_decide(beyond)
    assert not limits.could_not_decide(around)
    assert limits.could_not_decide(replace(around, scope=THESE_PROCESSES))
    assert not limits.could_not_decide(replace(around, scope=THIS_PROCESS))
    for reasons, repeat in {
        ("noisy machine: 9 of 9 pairs were disturbed",): True,
        ("noisy machine: 9 of 9 pairs were disturbed", "results were not checked"): False,
        ("results were not checked",): False,
    }.items():
        untrusted = replace(around, result=replace(around.result, untrusted=reasons))
        assert limits.could_not_decide(untrusted) is repeat, reasons
    wrong = replace(around.result, verdict=core.Verdict.WRONG, untrusted=("noisy machine",))
    assert not limits.could_not_decide(replace(around, result=wrong))


def test_one_launch_is_not_enough_to_fail() -> None:
    check = limits.check(replace(compared(0.5, 0.6), scope=THESE_PROCESSES), 0.05)
    assert check.outcome == "note"
    assert "one launch only" in check.text


def test_wrong_results_fail_with_and_without_a_limit_and_on_a_noisy_machine() -> None:
    comparison = compared(1.1, 1.2)
    accuracy = core.Accuracy(status=core.AccuracyStatus.FAIL, detail="output 0 differs")
    wrong = replace(
        comparison.result, verdict=core.Verdict.WRONG, accuracy=accuracy, untrusted=("noisy",)
    )
    for limit in (None, 0.05):
        check = limits.check(replace(comparison, result=wrong), limit)
        assert check.outcome == "fail"
        assert "output 0 differs" in check.text


def test_limits_are_percentages_or_fractions() -> None:
    assert read_limit("5%", where="limit") == read_limit(0.05, where="limit") == 0.05
    with pytest.raises(UsageError, match="limit: '5 apples'"):
        read_limit("5 apples", where="limit")


def session(folder: Path, speedup: float, **changes: Any) -> Run:
    """A run of one test with a known speedup."""
    study = replace(
        STUDY,
        candidates=STUDY.candidates[:1],
        workloads=(Workload(suite="python", name=NAME),),
    )
    plan = replace(
        Plan(effects={"fast": math.log(speedup)}, study=study, launch_sd=0.002), **changes
    )
    return write_session(folder, plan)


def change(before: Run, now: Run, *, limit: float | None = 0.05, name: str = NAME) -> limits.Check:
    comparison = Comparison(result=now.comparisons[0], scope=FRESH_PROCESSES, run=now.folder)
    return limits.check_change(comparison, name, limit, saved_as="main", runs=[before])


def test_a_change_beyond_the_limit_fails(tmp_path: Path) -> None:
    before = session(tmp_path / "1", 1.2)
    check = change(before, session(tmp_path / "2", 1.2 / 1.10, seed=2))
    assert check.outcome == "fail", check
    assert "since main +" in check.text
    assert "beyond the limit 5.0%" in check.text


def test_an_equal_session_passes(tmp_path: Path) -> None:
    before = session(tmp_path / "1", 1.2)
    now = session(tmp_path / "2", 1.2, seed=2)
    assert change(before, now).outcome == "pass"
    assert "within the limit" in change(before, now).text
    assert change(before, now, limit=None).outcome == "pass"


def test_a_slowdown_near_the_limit_is_undecided(tmp_path: Path) -> None:
    before = session(tmp_path / "1", 1.2)
    check = change(before, session(tmp_path / "2", 1.2 / 1.05, seed=2))
    assert check.outcome == "note"
    assert "contains the limit" in check.text


def test_what_cannot_be_compared_passes_with_a_note(tmp_path: Path) -> None:
    before = session(tmp_path / "1", 1.2)
    slower = session(tmp_path / "2", 1.0, seed=2)
    assert change(before, slower).outcome == "fail"
    other_test = change(before, slower, name="test_file.py::test_other")
    assert (other_test.outcome, other_test.text) == ("note", "not in the baseline main")
    moved = session(tmp_path / "3", 1.0, machine={**MACHINE, "cpu": "Another 1"}, seed=2)
    check = change(before, moved)
    assert check.outcome == "note"
    assert "machine differs" in check.text
    noisy = change(before, session(tmp_path / "4", 1.0, busy=True, seed=2))
    assert noisy.outcome == "note"
    assert "not supported" in noisy.text


def test_a_test_that_was_wrong_before_passes_with_a_note(tmp_path: Path) -> None:
    before = session(tmp_path / "1", 1.2, wrong=((NAME, "fast"),))
    check = change(before, session(tmp_path / "2", 1.2, seed=2))
    assert check.outcome == "note"
    assert "wrong results in the baseline main" in check.text
