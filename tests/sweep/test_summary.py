"""The summary of a sweep from plans, statuses and runs; false alarms when everything is compared with itself."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from tests.sweep.sample_sweeps import (
    PASS,
    cell,
    comparison,
    failed,
    null_sweep,
    plan,
    run,
    status,
    study,
    whole_sweep,
    workload,
)
from torchyard.core.comparison import Accuracy, AccuracyStatus, Comparison, Verdict
from torchyard.process.ending import FAILURE_KINDS as TROUBLE_KINDS
from torchyard.stats.suite import geometric_mean
from torchyard.sweep.join import FAILURE_KINDS
from torchyard.sweep.model import ENDS, End, Outcome, SweepGroup, SweepSummary
from torchyard.sweep.rows import FAILURE_ENDS
from torchyard.sweep.summary import sweep_summary


def summary_of(*rows: Comparison, candidates: tuple[str, ...] = ("inductor",)) -> SweepSummary:
    """A sweep of one precision whose cells all have a run."""
    workloads = {one.workload.label: one.workload for one in rows}
    cells = [
        cell(number, study(one, candidates=candidates))
        for number, one in enumerate(workloads.values(), start=1)
    ]
    return sweep_summary(plan(cells), [status(one) for one in cells], [run(rows)])


def group(summary: SweepSummary, suite: str, candidate: str, precision: str) -> SweepGroup:
    return next(
        one
        for one in summary.groups
        if (one.key.suite, one.key.candidate, one.key.precision) == (suite, candidate, precision)
    )


def test_every_cell_and_candidate_is_a_row() -> None:
    sweep_plan, statuses, runs = whole_sweep()
    summary = sweep_summary(sweep_plan, statuses, runs)
    assert len(summary.rows) == 2 * len(sweep_plan.cells)
    assert {row.cell for row in summary.rows} == {one.id for one in sweep_plan.cells}
    assert sum(one.workloads for one in summary.groups) == len(summary.rows)
    assert sum(count for one in summary.groups for _, count in one.ends) == len(summary.rows)


def test_common_workloads_are_those_that_every_candidate_passed() -> None:
    summary = sweep_summary(*whole_sweep())
    inductor = group(summary, "kernels", "inductor", "float32")
    aot_eager = group(summary, "kernels", "aot_eager", "float32")
    assert (inductor.passed, aot_eager.passed) == (4, 2)
    assert inductor.common is not None
    assert aot_eager.common is not None
    assert inductor.own is not None
    assert inductor.common.workloads == aot_eager.common.workloads == 2
    assert inductor.own.workloads == 4
    assert inductor.common.speedup == pytest.approx(math.sqrt(1.02 * 1.31))
    assert inductor.own.speedup == pytest.approx((1.02 * 1.31 * 2.4 * 0.82) ** 0.25)


def test_the_interval_of_a_mean_is_that_of_its_estimates() -> None:
    rows = [comparison(workload(f"w{n}"), speedup=1.1 + n / 10, seed=n) for n in range(3)]
    found = summary_of(*rows).groups[0]
    expected = geometric_mean([row.estimate for row in rows if row.estimate])
    assert expected is not None
    assert found.common is not None
    assert found.common == found.own
    assert (found.common.speedup, found.common.interval) == expected


def test_slowdowns_are_not_clipped() -> None:
    # The five speedups of which a mean that counts slowdowns as 1 makes 1.14x.
    speeds = (1.5, 1.3, 0.7, 0.6, 1.0)
    summary = summary_of(*(comparison(workload(f"w{n}"), speedup=s) for n, s in enumerate(speeds)))
    mean = summary.groups[0].own
    assert mean is not None
    assert mean.speedup == pytest.approx(math.prod(speeds) ** 0.2)
    assert mean.speedup < 1.0


def test_without_a_workload_in_common_there_is_no_common_mean() -> None:
    one, other = workload("one"), workload("other")
    summary = summary_of(
        comparison(one, candidate="a"),
        failed(one, "crashed", candidate="b"),
        failed(other, "crashed", candidate="a"),
        comparison(other, candidate="b"),
        candidates=("a", "b"),
    )
    assert [one.common for one in summary.groups] == [None, None]
    assert [one.own.workloads for one in summary.groups if one.own] == [1, 1]


def test_what_did_not_pass_is_in_no_mean() -> None:
    wrong = Accuracy(status=AccuracyStatus.FAIL, detail="output 0")
    drawn = Accuracy(status=AccuracyStatus.RANDOM)
    unsteady = Accuracy(status=AccuracyStatus.NONDETERMINISTIC, detail="output 0 by 0.1")
    unchecked = Accuracy(status=AccuracyStatus.UNCHECKED, detail="no float64")
    summary = summary_of(
        comparison(workload("good"), speedup=1.1),
        comparison(workload("wrong"), speedup=9.0, accuracy=wrong),
        comparison(workload("random"), speedup=9.0, accuracy=drawn),
        comparison(workload("unsteady"), speedup=9.0, accuracy=unsteady),
        comparison(workload("unchecked"), speedup=9.0, accuracy=unchecked),
        comparison(workload("unknown"), speedup=9.0, accuracy=None),
    )
    only = summary.groups[0]
    assert dict(only.ends) == {
        "passed": 1,
        "wrong": 1,
        "nondeterministic": 1,
        "random": 1,
        "unchecked": 2,
    }
    assert only.own is not None
    assert (only.own.workloads, only.pass_rate) == (1, 1 / 6)
    reasons = {row.end: row.reason for row in summary.rows}
    assert reasons["nondeterministic"] == "two runs of the baseline differ: output 0 by 0.1"
    assert [row.workload for row in summary.best] == ["kernels/good inference"]


@pytest.mark.parametrize("said", AccuracyStatus)
def test_every_accuracy_status_has_an_outcome(said: AccuracyStatus) -> None:
    summary = summary_of(comparison(workload("one"), accuracy=Accuracy(status=said)))
    right = said in {AccuracyStatus.PASS, AccuracyStatus.LESS_ACCURATE}
    assert (summary.rows[0].end == "passed") is right
    assert (summary.rows[0].reason == "") is (said is AccuracyStatus.PASS)


def test_unchecked_results_are_not_failures_but_noted() -> None:
    one = study(workload("one"))
    one = replace(one, settings=replace(one.settings, check_accuracy=False))
    only = cell(1, one)
    row = comparison(workload("one"), accuracy=None)
    summary = sweep_summary(plan([only]), [status(only)], [run([row], check_accuracy=False)])
    assert summary.rows[0].end == "passed"
    assert not summary.checked
    assert any("accuracy check was off" in doubt for doubt in summary.doubts)


@pytest.mark.parametrize("kind", TROUBLE_KINDS)
def test_every_failure_kind_of_a_worker_has_an_outcome(kind: str) -> None:
    summary = summary_of(failed(workload("one"), kind, tail="the last line"))
    row = summary.rows[0]
    assert row.end == FAILURE_ENDS[kind]
    assert row.end in ENDS
    assert row.verdict is Verdict.FAILED
    assert f"it ended as {kind}" in row.reason
    assert row.log_tail == "the last line"


def test_every_kind_that_joining_writes_is_known() -> None:
    assert set(FAILURE_KINDS.values()) <= set(FAILURE_ENDS)


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        ("died", "crashed"),
        ("time-limit", "hung"),
        ("memory-limit", "out-of-memory"),
        ("node-failed", "not-finished"),
        ("interrupted", "not-finished"),
        ("refused", "unsupported"),
    ],
)
def test_a_cell_that_was_given_up_says_why(outcome: Outcome, end: End, tmp_path: Path) -> None:
    only = cell(1, study(workload("one")))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "one.log").write_text("before\nlast words\n")
    gone = status(only, "failed", outcomes=(outcome,), text="no luck", log="logs/one.log")
    summary = sweep_summary(plan([only]), [gone], [], folders=[tmp_path])
    row = summary.rows[0]
    assert (row.end, row.verdict) == (end, Verdict.FAILED)
    assert row.reason == f"{outcome}: no luck"
    assert row.log_tail.endswith("last words\n")
    # The joined run has a row for it too, which knows less of how the attempts ended.
    joined = run([failed(workload("one"), "crashed", phase="cell", tail="from the run")])
    again = sweep_summary(plan([only]), [gone], [joined]).rows[0]
    assert (again.end, again.reason, again.log_tail) == (end, row.reason, "from the run")


def test_every_outcome_of_an_attempt_has_a_text() -> None:
    only = cell(1, study(workload("one")))
    for outcome in get_args(Outcome):
        summary = sweep_summary(plan([only]), [status(only, "failed", outcomes=(outcome,))], [])
        assert summary.rows[0].end in ENDS


def test_a_log_elsewhere_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    folder = tmp_path / "sweep"
    folder.mkdir()
    only = cell(1, study(workload("one")))
    for name in ("../secret", str(secret), "logs/missing.log"):
        gone = status(only, "failed", outcomes=("died",), log=name)
        assert sweep_summary(plan([only]), [gone], [], folders=[folder]).rows[0].log_tail == ""


def test_cells_that_wait_or_run_are_not_finished() -> None:
    cells = [cell(n, study(workload(f"w{n}"))) for n in range(3)]
    summary = sweep_summary(
        plan(cells),
        [
            status(cells[0], "waiting", outcomes=()),
            status(cells[1], "running", outcomes=(None,), text="measuring"),
            status(cells[2]),
        ],
        [],
    )
    assert [row.end for row in summary.rows] == ["not-finished"] * 3
    assert [row.reason for row in summary.rows] == [
        "waiting",
        "running: measuring",
        "the run of its cell does not contain this comparison",
    ]
    assert summary.cells_finished == 1
    assert summary.groups[0].pass_rate == 0.0
    assert "2 of 3 cells are not finished" in summary.doubts[0]


def test_claims_are_corrected_over_all_precisions_together() -> None:
    weak = comparison(workload("weak"), speedup=1.011, sd=0.0089, seed=3)
    assert weak.estimate is not None
    assert weak.estimate.p_value is not None
    assert 0.02 < weak.estimate.p_value < 0.05
    assert weak.verdict is Verdict.FASTER
    alone = summary_of(weak).rows[0]
    assert (alone.verdict, alone.demoted) == (Verdict.FASTER, False)
    # The same row beside many of the other precision that show nothing.
    others = [workload(f"w{n}") for n in range(9)]
    nothing = [comparison(one, speedup=1.0, seed=n) for n, one in enumerate(others)]
    cells = [cell(0, study(workload("weak")))]
    cells += [cell(n, study(one, precision="amp")) for n, one in enumerate(others, start=1)]
    summary = sweep_summary(
        plan(cells),
        [status(one) for one in cells],
        [run([weak]), run(nothing, precision="amp", id_="amp")],
    )
    row = summary.rows[0]
    assert row.p_adjusted == pytest.approx(10 * weak.estimate.p_value)
    assert (row.verdict, row.verdict_alone) == (Verdict.UNDECIDED, Verdict.FASTER)
    assert "not significant after adjustment for all comparisons of the sweep" in row.reason


def test_the_sweep_decides_and_not_the_smaller_family_of_a_run() -> None:
    weak = comparison(workload("weak"), speedup=1.011, sd=0.0089, seed=3)
    assert weak.estimate is not None
    taken_back = replace(weak.estimate, verdict=Verdict.UNDECIDED, p_adjusted=0.2)
    strong = [comparison(workload(f"w{n}"), speedup=1.5, seed=n) for n in range(4)]
    summary = summary_of(replace(weak, verdict=Verdict.UNDECIDED, estimate=taken_back), *strong)
    assert summary.rows[0].verdict is Verdict.FASTER
    assert summary.rows[0].reason == ""


def test_wrong_rows_do_not_affect_the_correction() -> None:
    wrong = Accuracy(status=AccuracyStatus.FAIL)
    bad = [comparison(workload(f"w{n}"), speedup=3.0, accuracy=wrong) for n in range(20)]
    summary = summary_of(comparison(workload("one")), *bad)
    assert [row.p_adjusted is None for row in summary.rows] == [False, *[True] * 20]
    assert summary.rows[0].p_adjusted == summary.rows[0].p_value


def test_costs_of_a_candidate() -> None:
    summary = summary_of(
        comparison(workload("a"), speedup=2.0, compile_s=4.0, memory=(100, 200)),
        comparison(workload("b"), speedup=1.25, compile_s=20.0, memory=(200, 100)),
        comparison(workload("c"), speedup=0.5, compile_s=6.0, memory=None),
        failed(workload("d"), "timeout"),
    ).groups[0]
    assert (summary.compiled, summary.compile_median_s, summary.compile_sum_s) == (3, 6.0, 30.0)
    assert summary.memory_ratio == pytest.approx(1.0)
    assert summary.memory_rows == 2
    # 10 ms become 5 ms: 4 s are paid back after 800; 10 become 8 ms: 20 s after 10 000.
    assert summary.break_even_rows == 2
    assert summary.break_even_median == pytest.approx((800 + 10_000) / 2)


def test_memory_measured_in_two_ways_is_no_ratio() -> None:
    row = comparison(workload("a"))
    other = replace(row.candidate_metrics, memory_method="allocator")
    assert summary_of(replace(row, candidate_metrics=other)).rows[0].memory_ratio is None


def test_the_extremes_are_five_each_and_never_overlap() -> None:
    speeds = [0.5 + n / 10 for n in range(16)]
    rows = [comparison(workload(f"w{n}"), speedup=speed) for n, speed in enumerate(speeds)]
    summary = summary_of(*rows)
    assert [row.speedup for row in summary.best] == pytest.approx([2.0, 1.9, 1.8, 1.7, 1.6])
    assert [row.speedup for row in summary.worst] == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
    few = summary_of(*rows[-2:])
    assert (len(few.best), few.worst) == (2, ())


def test_totals_are_shown_for_several_groups_only() -> None:
    one = summary_of(comparison(workload("a")))
    assert one.totals == ()
    two = summary_of(comparison(workload("a")), comparison(workload("b", suite="models")))
    assert [total.key.suite for total in two.totals] == [""]
    assert two.totals[0].workloads == 2


def test_one_launch_describes_its_own_processes_only() -> None:
    summary = summary_of(comparison(workload("a"), launches=1, sd=0.0))
    row = summary.rows[0]
    assert row.speedup is not None
    assert row.verdict is Verdict.UNDECIDED
    assert summary.groups[0].own is None  # one pair is no interval


def test_rows_that_no_cell_asked_for_are_kept() -> None:
    only = cell(1, study(workload("one")))
    held = run([comparison(workload("one")), comparison(workload("guest"))])
    summary = sweep_summary(plan([only]), [status(only)], [held])
    assert [(row.cell, row.workload) for row in summary.rows] == [
        (only.id, "kernels/one inference"),
        ("", "kernels/guest inference"),
    ]


def test_untrusted_rows_and_several_machines_are_noted() -> None:
    one, other = workload("one"), workload("other")
    cells = [cell(1, study(one)), cell(2, study(other))]
    runs = [
        run([comparison(one, untrusted=True)]),
        run([comparison(other)], id_="b", machine={"cpu": "Other 7", "cores": "4"}),
    ]
    summary = sweep_summary(plan(cells), [status(c) for c in cells], runs)
    assert any("1 of 2 comparisons is untrusted" in doubt for doubt in summary.doubts)
    assert any("2 different machines" in doubt for doubt in summary.doubts)
    assert summary.rows[0].reason.startswith("untrusted: noisy machine")


def test_a_shard_says_that_it_is_one() -> None:
    only = cell(1, study(workload("one")))
    part = replace(plan([only]), shard=(2, 4))
    summary = sweep_summary(part, [status(only)], [run([comparison(workload("one"))])])
    assert any("shard 2 of 4" in doubt for doubt in summary.doubts)


def test_an_empty_sweep_has_a_summary() -> None:
    summary = sweep_summary(plan([]), [], [])
    assert (summary.rows, summary.groups, summary.best) == ((), (), ())


def test_a_false_alarm_rate_at_the_nominal_level() -> None:
    alarms = sweep_summary(*null_sweep(200)).false_alarms
    assert alarms is not None
    assert alarms.comparisons == 200
    assert alarms.within
    assert alarms.rate.covers(0.05)
    assert alarms.called <= alarms.significant
    assert alarms.called_adjusted <= alarms.called
    assert sum(alarms.bins) == 200


def test_a_false_alarm_rate_above_the_nominal_level() -> None:
    alarms = sweep_summary(*null_sweep(60, shift=0.01)).false_alarms
    assert alarms is not None
    assert not alarms.within
    assert alarms.rate.low > 0.05
    assert alarms.bins[0] > 50
    assert alarms.called_adjusted > 0


def test_small_p_values_are_reported_even_without_alarms() -> None:
    """Effects too small for alpha each, but in every comparison."""
    alarms = sweep_summary(*null_sweep(200, shift=0.0025)).false_alarms
    assert alarms is not None
    assert alarms.excess_chance < 0.01
    assert not alarms.within


def test_other_sweeps_have_no_false_alarms() -> None:
    assert sweep_summary(*whole_sweep()).false_alarms is None


def test_candidates_that_share_a_baseline_are_noted() -> None:
    one = workload("one")
    two = ("eager-again", "eager-again-2")
    only = cell(1, study(one, candidates=two))
    rows = [comparison(one, candidate=name, speedup=1.0, accuracy=PASS) for name in two]
    summary = sweep_summary(plan([only], null=True), [status(only)], [run(rows)])
    assert summary.false_alarms is not None
    assert summary.false_alarms.shared_baselines


def test_random_workloads_can_give_false_alarms_too() -> None:
    one = workload("one")
    drawn = Accuracy(status=AccuracyStatus.RANDOM)
    only = cell(1, study(one, candidates=("eager-again",)))
    row = comparison(one, candidate="eager-again", speedup=1.3, accuracy=drawn)
    alarms = sweep_summary(plan([only], null=True), [status(only)], [run([row])]).false_alarms
    assert alarms is not None
    assert (alarms.comparisons, alarms.called_adjusted) == (1, 1)
