"""The gate: limits, outcomes, exit codes, and robustness against chance."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.results.simulated_runs import GPT, MACHINE, MATMUL, STUDY, Plan, write_session
from torchyard.core.comparison import Interval, Verdict
from torchyard.errors import NothingToDo, UsageError
from torchyard.results.compare.compare_sides import compare_sides
from torchyard.results.compare.model import (
    CrossComparison,
    CrossRow,
    CrossSide,
    SideNumbers,
    Unpaired,
)
from torchyard.results.compare.sides import Rules, Side
from torchyard.results.gate.decision import Gate, compare_inside, run_gate
from torchyard.results.gate.model import Action, GateLimit, GateOutcome, GateRow, Policy
from torchyard.stats.between_runs import Effect, interval_of

SIDE = CrossSide(text="a", runs=("1",), variants=("fast",))


def row(
    slowdown: float,
    *,
    error: float = 0.005,
    label: str = MATMUL.label,
    supported: bool = True,
    **changes: Any,
) -> CrossRow:
    """A row whose other side is that much slower."""
    effect = Effect(log=-math.log1p(slowdown), error=error, degrees=20.0)
    known = SideNumbers(
        variant="fast", baseline="eager", time_ns=1e6, memory_bytes=100, compile_s=5.0
    )
    cross_row = CrossRow(
        workload=label,
        one=known,
        other=replace(known, time_ns=1e6 * (1 + slowdown)),
        support="common baseline" if supported else "not supported",
        basis="speedups",
        alike=supported,
        verdict=Verdict.UNDECIDED if supported else None,
        ratio=math.exp(effect.log),
        interval=interval_of(effect, 0.95) if supported else None,
        log_error=error if supported else None,
        degrees=20.0 if supported else None,
        reasons=() if supported else ("other machine: x and y",),
    )
    return replace(cross_row, **changes)


def compared(*rows: CrossRow, unpaired: tuple[Unpaired, ...] = ()) -> CrossComparison:
    return CrossComparison(
        one=SIDE,
        other=SIDE,
        rows=rows,
        unpaired=unpaired,
        facts=(),
        mean=None,
        confidence=0.95,
        margin=0.01,
        session_sd=0.005,
    )


def run_gate_on(*rows: CrossRow, unpaired: tuple[Unpaired, ...] = (), **gate: Any) -> GateOutcome:
    return run_gate(compared(*rows, unpaired=unpaired), Gate(**{"max_slowdown": 0.02, **gate}))


def only(outcome: GateOutcome) -> GateRow:
    (gate_row,) = outcome.rows
    return gate_row


@pytest.mark.parametrize(
    ("slowdown", "standing", "failed"),
    [
        (0.10, "crossed", True),
        (0.05, "crossed", True),
        (0.025, "undecided", False),
        (0.02, "undecided", False),
        (0.0, "kept", False),
        (-0.2, "kept", False),
    ],
)
def test_a_limit_is_crossed_or_kept_only_with_confidence(
    slowdown: float, standing: str, failed: bool
) -> None:
    outcome = run_gate_on(row(slowdown))
    assert (only(outcome).standing, outcome.failed) == (standing, failed)
    assert only(outcome).slowdown == pytest.approx(slowdown)


UNTRUSTED: dict[str, Any] = {
    "support": "not supported",
    "verdict": Verdict.UNTRUSTED,
    "log_error": None,
    "untrusted": ("the candidate replaced the clock (B)",),
}


@pytest.mark.parametrize("metric", ["speedup", "time", "compile", "memory"])
@pytest.mark.parametrize("slowdown", [-0.5, 0.0, 9.0])
@pytest.mark.parametrize("action", ["pass", "warn", "fail"])
def test_untrusted_rows_have_an_outcome_of_their_own(
    metric: Any, slowdown: float, action: Any
) -> None:
    policy = Policy(
        on_undecided=action, on_unsupported=action, on_missing=action, on_failing=action
    )
    outcome = run_gate_on(row(slowdown, **UNTRUSTED), metric=metric, policy=policy)
    gate_row = only(outcome)
    assert (gate_row.standing, gate_row.action, outcome.failed) == ("untrusted", "untrusted", False)
    assert outcome.untrusted
    assert gate_row.why[0] == "the candidate replaced the clock (B)"
    assert (gate_row.low, gate_row.high, gate_row.p_crossed) == (None, None, None)


def test_a_crossed_limit_fails_a_gate_beside_untrusted_rows() -> None:
    outcome = run_gate_on(row(0.5, label="a"), row(0.0, label="b", **UNTRUSTED))
    assert (outcome.failed, outcome.untrusted) == (True, True)
    free = run_gate_on(
        row(0.0, label="a"),
        row(0.0, label="b", **UNTRUSTED),
        max_slowdown=None,
        limits=(GateLimit(pattern="a", max_slowdown=0.02),),
    )
    assert not free.untrusted, "a workload without a limit is not judged"


def test_crossed_means_that_the_near_end_lies_beyond() -> None:
    for slowdown in (0.02 + 0.001 * step for step in range(30)):
        gate_row = only(run_gate_on(row(slowdown)))
        assert gate_row.low is not None
        assert gate_row.high is not None
        assert gate_row.low < slowdown < gate_row.high
        assert (gate_row.standing == "crossed") is (gate_row.low > 0.02)


def test_among_many_workloads_one_near_miss_is_not_enough() -> None:
    lonely = row(0.0325)
    assert only(run_gate_on(lonely)).standing == "crossed"
    crowd = [row(0.0, label=f"kernels/k{n} inference") for n in range(40)]
    outcome = run_gate_on(lonely, *crowd)
    gate_row = next(one for one in outcome.rows if one.workload == MATMUL.label)
    assert gate_row.standing == "undecided"
    assert "before the correction for 41 workloads" in gate_row.why[-1]
    assert run_gate_on(row(0.10), *crowd).failed


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        ("models/*", 0.5),
        ("models/gpt", 0.5),
        ("models/gpt training", 0.5),
        ("*", 0.5),
        ("models", 0.02),
        ("kernels/*", 0.02),
        ("*inference", 0.02),
    ],
)
def test_patterns_fit_labels_and_names(pattern: str, limit: float) -> None:
    gate = Gate(max_slowdown=0.02, limits=(GateLimit(pattern=pattern, max_slowdown=0.5),))
    assert gate.limit_of(GPT.label) == limit


def test_the_last_limit_that_fits_counts() -> None:
    limits = (
        GateLimit(pattern="models/*", max_slowdown=0.5),
        GateLimit(pattern="models/gpt", max_slowdown=0.1),
    )
    assert Gate(limits=limits).limit_of(GPT.label) == 0.1
    assert Gate(limits=limits[::-1]).limit_of(GPT.label) == 0.5
    assert Gate(limits=limits).limit_of(MATMUL.label) is None


def test_a_workload_without_a_limit_passes_and_is_shown() -> None:
    limit = GateLimit(pattern="models/*", max_slowdown=0.02)
    outcome = run_gate_on(row(0.5), row(0.0, label=GPT.label), max_slowdown=None, limits=(limit,))
    assert [(one.workload, one.standing) for one in outcome.rows] == [
        (GPT.label, "kept"),
        (MATMUL.label, "no limit"),
    ]
    with pytest.raises(NothingToDo):
        run_gate_on(row(0.5), max_slowdown=None, limits=(limit,))


def lost(one: Any, other: Any) -> Unpaired:
    return Unpaired(workload=GPT.label, variants=("fast", "fast"), one=one, other=other, why="so")


@pytest.mark.parametrize(
    ("one", "other", "standing", "action"),
    [
        ("measured", "absent", "missing", "warn"),
        ("measured", "failed", "failing", "fail"),
        ("measured", "wrong", "failing", "fail"),
        ("measured", "no number", "failing", "fail"),
        ("absent", "failed", "failing", "fail"),
        ("failed", "failed", "failing", "warn"),
        ("wrong", "failed", "failing", "warn"),
        ("failed", "measured", "new", "pass"),
        ("absent", "measured", "new", "pass"),
        ("failed", "absent", "missing", "warn"),
    ],
)
def test_rows_that_cannot_be_compared_are_decided_and_reported(
    one: Any, other: Any, standing: str, action: Action
) -> None:
    outcome = run_gate_on(row(0.0), unpaired=(lost(one, other),))
    gate_row = next(item for item in outcome.rows if item.workload == GPT.label)
    assert (gate_row.standing, gate_row.action) == (standing, action)
    assert outcome.failed is (action == "fail")
    assert gate_row.why[0].startswith("so")


@pytest.mark.parametrize(
    "unpaired",
    [
        (lost("measured", "absent"),),
        (lost("measured", "absent"), lost("absent", "measured")),
        (lost("failed", "failed"),),
    ],
)
def test_a_gate_does_not_pass_if_nothing_was_checked(unpaired: tuple[Unpaired, ...]) -> None:
    with pytest.raises(NothingToDo, match="nothing was checked"):
        run_gate_on(unpaired=unpaired)
    assert run_gate_on(unpaired=(lost("absent", "failed"),)).failed


def test_limits_that_match_no_workload_are_named() -> None:
    limits = tuple(GateLimit(pattern=p, max_slowdown=0.1) for p in ("kernls/*", "kernels/*"))
    assert Gate(limits=limits).unmatched([MATMUL.label, GPT.label]) == ["kernls/*"]


@pytest.mark.parametrize("action", ["pass", "warn", "fail"])
def test_policies_decide(action: Action) -> None:
    policy = Policy(
        on_undecided=action, on_unsupported=action, on_missing=action, on_failing=action
    )
    for rows, unpaired in (
        ((row(0.02),), ()),
        ((row(0.5, supported=False),), ()),
        ((row(0.0),), (lost("measured", "absent"),)),
        ((row(0.0),), (lost("measured", "failed"),)),
    ):
        outcome = run_gate_on(*rows, unpaired=unpaired, policy=policy)
        assert outcome.failed is (action == "fail")
        assert outcome.rows[0].action == action


def test_unsupported_rows_fail_the_gate_by_default() -> None:
    outcome = run_gate_on(row(-0.5, supported=False))
    assert (only(outcome).standing, outcome.failed) == ("unsupported", True)
    assert only(outcome).slowdown == pytest.approx(-0.5)
    assert only(outcome).low is None


def test_the_most_severe_outcome_comes_first() -> None:
    outcome = run_gate_on(
        row(0.0, label="a/kept inference"),
        row(0.1, label="b/crossed inference"),
        row(0.02, label="c/undecided inference"),
        row(0.1, label="d/unsupported inference", supported=False),
        unpaired=(lost("measured", "failed"),),
    )
    standings = [one.standing for one in outcome.rows]
    assert standings == ["crossed", "failing", "unsupported", "undecided", "kept"]
    assert outcome.counts() == dict.fromkeys(standings, 1)


def test_times_of_two_runs_are_never_supported() -> None:
    gate_row = only(run_gate_on(row(0.1), metric="time"))
    assert (gate_row.standing, gate_row.why[0]) == (
        "unsupported",
        "times of two runs are not interleaved",
    )
    assert gate_row.slowdown == pytest.approx(0.1)
    inside = row(0.1, support="interleaved")
    assert only(run_gate_on(inside, metric="time")).standing == "crossed"


@pytest.mark.parametrize(("metric", "key"), [("memory", "memory_bytes"), ("compile", "compile_s")])
def test_point_values_are_compared_with_the_limit(metric: Any, key: str) -> None:
    def side(value: Any) -> SideNumbers:
        changes: dict[str, Any] = {key: value}
        return replace(SideNumbers(variant="fast"), **changes)

    more = row(0.0, one=side(100), other=side(103))
    assert only(run_gate_on(more, metric=metric)).standing == "crossed"
    assert only(run_gate_on(more, metric=metric)).slowdown == pytest.approx(0.03)
    assert (
        only(run_gate_on(row(0.0, one=side(100), other=side(102)), metric=metric)).standing
        == "kept"
    )
    busy = row(0.0, one=side(100), other=side(103), support="not supported", log_error=None)
    assert only(run_gate_on(busy, metric=metric)).standing == "crossed", (
        "a busy machine is no other one"
    )
    away = replace(busy, alike=False)
    assert only(run_gate_on(away, metric=metric)).standing == "unsupported"
    half = row(0.0, one=side(None), other=side(103))
    assert only(run_gate_on(half, metric=metric)).why == (f"no {metric} reading before",)
    with pytest.raises(NothingToDo, match=f"no workload has both a limit and a {metric}"):
        run_gate_on(row(0.0, one=side(None), other=side(None)), metric=metric)


def test_a_run_is_gated_on_its_own_verdicts(tmp_path: Path) -> None:
    run = write_session(tmp_path / "run", Plan(effects={"fast": 0.1, "slow": -0.1}))
    comparison = compare_inside(Side(text="run", runs=(run,)), Rules())
    assert {one.support for one in comparison.rows} == {"interleaved"}
    outcome = run_gate(comparison, Gate(max_slowdown=0.02))
    assert {(one.variants[1], one.standing) for one in outcome.rows} == {
        ("slow", "crossed"),
        ("fast", "kept"),
    }
    chosen = compare_inside(Side(text="run#fast", runs=(run,), variant="fast"), Rules())
    assert not run_gate(chosen, Gate(max_slowdown=0.02)).failed
    with pytest.raises(UsageError, match="no candidate"):
        compare_inside(Side(text="run#eager", runs=(run,), variant="eager"), Rules())


def test_a_run_is_gated_against_another(tmp_path: Path) -> None:
    before = write_session(tmp_path / "before", Plan())
    slower = Plan(seed=2, drift=-0.4, effects={"fast": 0.1, "slow": 0.05})
    now = write_session(tmp_path / "now", slower)
    comparison = compare_sides(
        Side(text="before", runs=(before,)), Side(text="now", runs=(now,)), Rules()
    )
    outcome = run_gate(comparison, Gate(max_slowdown=0.03))
    standings = {(one.workload, one.variants[1]): one.standing for one in outcome.rows}
    assert standings == {
        (MATMUL.label, "fast"): "crossed",
        (GPT.label, "fast"): "crossed",
        (MATMUL.label, "slow"): "kept",
        (GPT.label, "slow"): "kept",
    }


def test_another_machine_fails_the_gate(tmp_path: Path) -> None:
    before = write_session(tmp_path / "before", Plan())
    away = Plan(seed=2, machine={**MACHINE, "cpu": "Other 1"}, study=replace(STUDY, name="away"))
    now = write_session(tmp_path / "now", away)
    comparison = compare_sides(
        Side(text="before", runs=(before,)), Side(text="now", runs=(now,)), Rules()
    )
    outcome = run_gate(comparison, Gate(max_slowdown=0.5))
    assert outcome.failed
    assert {one.standing for one in outcome.rows} == {"unsupported"}


def test_an_interval_without_ends_is_undecided() -> None:
    gate_row = only(run_gate_on(row(0.1, error=100.0, interval=None)))
    assert (gate_row.standing, gate_row.low) == ("undecided", None)
    exact = only(run_gate_on(row(0.0, interval=Interval(low=0.99, high=1.01))))
    assert exact.high == pytest.approx(1 / 0.99 - 1)
