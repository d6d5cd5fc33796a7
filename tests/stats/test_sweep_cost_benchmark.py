"""The tables of the sweep cost benchmark: verdicts, costs, and resume after a kill."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded(monkeypatch, "sweep_cost_report")


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded(monkeypatch, "sweep_cost")


def loaded(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for own in ("sweep_cost_report", "sweep_cost_cases", "sweep_cost"):
        monkeypatch.delitem(sys.modules, own, raising=False)
    return importlib.import_module(name)


def found(low: float, high: float, *, again: bool = False) -> dict[str, Any]:
    line = {"again": again, "verdicts": {"fixed, 5 %": "same", "fixed, p < 0.1": "faster"}}
    return {"fixed": line, "reference": {"low": low, "high": high}}


@pytest.mark.parametrize(
    ("low", "high", "size", "any_difference", "adaptive"),
    [
        (1.49, 1.51, {"faster"}, {"faster"}, {"faster"}),
        (1.02, 1.03, {"same"}, {"faster"}, {"faster", "same"}),
        (0.99, 1.01, {"same"}, {"faster", "slower", "same"}, {"faster", "slower", "same"}),
        (1.04, 1.06, {"faster", "same"}, {"faster"}, {"faster", "same"}),
        (0.80, 0.82, {"slower"}, {"slower"}, {"slower"}),
        (0.94, 0.96, {"slower", "same"}, {"slower"}, {"slower", "same"}),
    ],
)
def test_each_rule_is_checked_against_its_own_question(
    report: ModuleType,
    low: float,
    high: float,
    size: set[str],
    any_difference: set[str],
    adaptive: set[str],
) -> None:
    known = found(low, high)
    assert report.truth(known, "fixed, 5 %") == size
    assert report.truth(known, "fixed, p < 0.1") == any_difference
    assert report.truth(known, "adaptive") == adaptive


def test_what_is_compared_with_itself_is_the_same(report: ModuleType) -> None:
    for rule in ("fixed, 5 %", "fixed, p < 0.1", "adaptive"):
        assert report.truth(found(1.4, 1.6, again=True), rule) == {"same"}


def line(case: str, method: str, wall_s: float, **more: object) -> dict[str, Any]:
    verdicts = {"adaptive": "same"}
    if method == "fixed":
        verdicts = {"fixed, 5 %": "same", "fixed, p < 0.1": "faster"}
    return {
        "case": case,
        "method": method,
        "again": True,
        "wall_s": wall_s,
        "start_s": wall_s / 2,
        "compile_s": 0.0,
        "compile_warm_s": 0.5,
        "measure_s": wall_s / 2,
        "cpu_s": wall_s,
        "measure_cpu_s": wall_s / 2,
        "processes": 1 if method == "fixed" else 4,
        "pairs": 30,
        "verdicts": verdicts,
        **more,
    }


def test_further_processes_are_started_and_measured(report: ModuleType) -> None:
    both = {
        "fixed": line("a", "fixed", 10.0, compile_s=7.0),
        "adaptive": line("a", "adaptive", 1.0),
    }
    assert report.cost_of_processes(both, 1) == pytest.approx(17.0)
    assert report.cost_of_processes(both, 3) == pytest.approx(17.0 + 2 * 10.5)


def test_tables_of_two_workloads(report: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        line(case, method, wall_s)
        for case in ("a", "b")
        for method, wall_s in (("fixed", 10.0), ("adaptive", 4.0))
    ]
    report.print_report([*lines, line("half", "fixed", 99.0)])
    output = capsys.readouterr().out
    assert "2 workloads, from the first process to the answer" in output
    assert "| everything | 0.40 | 0.40 [0.40, 0.40] |" in output
    assert "| fixed, p < 0.1 | 2 of 2 |" in output
    assert "| adaptive | 0 of 2 |" in output
    assert "4, what the hardest workload needed" in output


def test_nothing_measured_is_reported(
    report: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    report.print_report([])
    assert "no workload was measured by both methods" in capsys.readouterr().out


def test_a_line_truncated_by_a_kill_is_measured_again(cost: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "cost.jsonl"
    whole = json.dumps(line("a", "fixed", 1.0))
    path.write_text(whole + "\n" + whole.replace('"a"', '"b"')[:40])
    assert set(cost.done(path)) == {("a", "fixed")}
    assert cost.done(tmp_path / "none.jsonl") == {}


def test_there_are_twenty_workloads_of_three_kinds(cost: ModuleType) -> None:
    names = [case.name for case in cost.CASES]
    assert len(names) == len(set(names)) == 20
    quick = [cost.CASES[place] for place in cost.QUICK]
    assert sorted(case.backend for case in quick) == sorted(2 * ["aot_eager", "eager", "inductor"])


def test_references_come_from_all_over_the_list(cost: ModuleType) -> None:
    cases = list(cost.CASES[6:])
    assert cost.spread_out(cases, len(cases)) == cases
    assert len(set(cost.spread_out(cases, 3))) == 3
    assert cost.spread_out(cases, 0) == []
    assert len(cost.spread_out(cases, 99)) == len(cases)
