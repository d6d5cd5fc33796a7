"""The estimated wall time of a bench run: from earlier runs, from the budget, and in words."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.command_line import call
from tests.results.run_directories import compared
from tests.results.run_samples import MATMUL
from torchyard.bench.time_estimate import (
    CONTROLLER_S,
    EarlierRun,
    TimeEstimate,
    earlier_runs,
    estimate_time,
    machine_of_workloads,
    preparation_s,
)
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.study import Budget, Study, Target, Variant, Workload
from torchyard.machine.facts import read_facts
from torchyard.machine.identity import machine_name
from torchyard.results.index.store import Store
from torchyard.results.run_writer import RunWriter

Capture = pytest.CaptureFixture[str]
HERE = Target(name="here", python=sys.executable)
SOFTMAX = Workload(suite="kernels", name="softmax")
STUDY = Study(
    name="study",
    baseline=Variant(name="eager", target=HERE),
    candidates=(Variant(name="inductor", target=HERE, backend="inductor"),),
    workloads=(MATMUL, SOFTMAX),
    budget=Budget(time_s=60.0),
)
EARLIER = EarlierRun(
    run="20250101T120000.000Z-0000",
    measured_s=20.0,
    first_start_s=10.0,
    later_start_s=2.0,
    launch_s=3.0,
    decided=True,
    same_budget=True,
    size_bytes=1.0,
    tensor_bytes=None,
)


def measured_s(one: EarlierRun, budget: Budget) -> float:
    return one.expected_s(budget) - one.first_start_s - CONTROLLER_S


@pytest.mark.parametrize(
    ("changes", "budget", "expected_s"),
    [
        ({}, Budget(time_s=60.0), 20.0),
        # An undecided run with the same budget takes as long again, even if that is more or less.
        ({"decided": False, "measured_s": 26.0}, Budget(time_s=5.0), 26.0),
        # A shorter budget ends measuring earlier, by time and one start at most.
        ({"same_budget": False}, Budget(time_s=5.0), 7.0),
        # A longer budget changes nothing for a decided comparison.
        ({"same_budget": False}, Budget(time_s=300.0), 20.0),
        # An undecided one uses it, and so does one that shall use the whole time.
        ({"same_budget": False, "decided": False}, Budget(time_s=300.0), 300.0),
        ({"same_budget": False}, Budget(time_s=300.0, precision_goal=0.0), 300.0),
    ],
)
def test_the_budget_changes_how_long_measuring_takes(
    changes: dict[str, bool | float], budget: Budget, expected_s: float
) -> None:
    one = replace(EARLIER, **changes)  # type: ignore[arg-type]
    assert measured_s(one, budget) == pytest.approx(expected_s)


def test_the_median_of_runs_with_the_same_budget_counts() -> None:
    study = replace(STUDY, workloads=(MATMUL,))
    others = [replace(EARLIER, run=str(number), measured_s=float(number)) for number in (30, 500)]
    other_budget = replace(EARLIER, run="x", measured_s=1.0, same_budget=False)
    estimate = estimate_time(study, {MATMUL.label: [EARLIER, *others, other_budget]})
    assert estimate == TimeEstimate(
        expected_s=CONTROLLER_S + 10.0 + 30.0, workloads=1, known=1, runs=3
    )
    estimate = estimate_time(study, {MATMUL.label: [other_budget]})
    assert (estimate.known, estimate.runs) == (1, 1)


def test_a_workload_without_an_earlier_run_takes_its_budget() -> None:
    estimate = estimate_time(STUDY, {MATMUL.label: [EARLIER]})
    # The other workload was ready after 10 s.
    assert estimate.expected_s == pytest.approx(CONTROLLER_S + 30.0 + 10.0 + 60.0)
    assert (estimate.workloads, estimate.known, estimate.runs) == (2, 1, 1)
    estimate = estimate_time(STUDY, {})
    assert estimate.expected_s == pytest.approx(2 * (preparation_s(1) + 60.0))
    assert (estimate.known, estimate.runs) == (0, 0)


@pytest.mark.parametrize(
    ("estimate", "line"),
    [
        (
            TimeEstimate(expected_s=250.0, workloads=3, known=3, runs=5),
            "plan: 3 workloads, about 4 min (from 5 earlier runs)",
        ),
        (
            TimeEstimate(expected_s=31.2, workloads=1, known=1, runs=1),
            "plan: 1 workload, about 31 s (from 1 earlier run)",
        ),
        (
            TimeEstimate(expected_s=250.0, workloads=3, known=2, runs=5),
            "plan: 3 workloads, about 4 min (2 from 5 earlier runs, 1 guessed from the time budget)",
        ),
        (
            TimeEstimate(expected_s=9000.0, workloads=3, known=0, runs=0),
            "plan: 3 workloads, about 2.5 h (guessed from the time budget: there is no earlier run)",
        ),
    ],
)
def test_the_line(estimate: TimeEstimate, line: str) -> None:
    assert estimate.line == line


def keep_run(home: Path, name: str, rows: Sequence[Comparison], *, start_s: object = 10.0) -> None:
    """A run on this machine, whose first launch was ready after `start_s`."""
    writer = RunWriter.create(home / name, study=STUDY, command=["bench"], machine=read_facts())
    for one in rows:
        writer.add_launch(
            {
                "workload": one.workload.label,
                "launch": 0,
                "start_s": start_s,
                "timing": {"wall_s": start_s},
            }
        )
        writer.add_comparison(one)
    writer.finish("finished")


def test_runs_of_several_workloads_count_for_each_of_them(tmp_path: Path) -> None:
    rows = [replace(compared(one), elapsed_s=20.0) for one in STUDY.workloads]
    undecided = replace(rows[0], verdict=Verdict.UNDECIDED, elapsed_s=61.0)
    keep_run(tmp_path, "20250101T000000.000Z-0001", rows)
    keep_run(tmp_path, "20250102T000000.000Z-0001", [undecided])
    studies = {one.label: replace(STUDY, workloads=(one,)) for one in STUDY.workloads}
    machine = machine_name({"machine": read_facts()})
    with Store.open(tmp_path) as store:
        store.refresh()
        earlier = earlier_runs(studies, store, machine=machine)
        assert earlier_runs(studies, store, machine="other") == {}
    assert [one.measured_s for one in earlier[MATMUL.label]] == [61.0, 20.0]
    estimate = estimate_time(STUDY, earlier)
    assert estimate.expected_s == pytest.approx(2 * (CONTROLLER_S + 10.0) + 40.5 + 20.0)
    assert (estimate.known, estimate.runs) == (2, 2)


def test_runs_on_a_gpu_are_those_of_its_model() -> None:
    on_gpu = replace(SOFTMAX, device="cuda")
    h200 = {"here": {"devices": ["cpu", "cuda:0 NVIDIA H200"]}}
    t4 = {"here": {"devices": ["cpu", "cuda:0 NVIDIA T4"]}}
    info = {
        "machine": read_facts(),
        "study": {"workloads": [{"device": "cuda"}]},
        "targets": {"this+default": h200["here"]},
    }
    assert machine_of_workloads([on_gpu], h200) == machine_name(info)
    assert machine_of_workloads([on_gpu], t4) != machine_name(info)
    assert machine_of_workloads([SOFTMAX], h200) == machine_name({"machine": read_facts()})


@pytest.mark.parametrize("start_s", ["soon", -1.0, [], None, {"s": 3}, math.inf, math.nan])
def test_impossible_records_of_launches_are_ignored(tmp_path: Path, start_s: object) -> None:
    keep_run(tmp_path, "20250101T000000.000Z-0001", [compared()], start_s=start_s)
    studies = {"": replace(STUDY, workloads=(MATMUL,))}
    with Store.open(tmp_path) as store:
        store.refresh()
        ((one,),) = earlier_runs(studies, store, machine="").values()
    assert (one.first_start_s, one.launch_s) == (0.0, 0.0)


def test_an_endless_estimate_is_unknown() -> None:
    huge = replace(EARLIER, measured_s=1e308)
    estimate = estimate_time(STUDY, {one.label: [huge] for one in STUDY.workloads})
    assert estimate.line == "plan: 2 workloads, about unknown (from 1 earlier run)"


ARGUMENTS = ("bench", "--only", "kernels/matmul", "--time", "60s", "--dry-run")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    return tmp_path / "runs"


def test_the_plan_shows_the_estimate(capsys: Capture, runs: Path) -> None:
    completed = call(capsys, *ARGUMENTS)
    assert completed.err == (
        "plan: 1 workload, about 78 s (guessed from the time budget: there is no earlier run)\n"
    )
    matmul = Workload(suite="kernels", name="matmul")
    keep_run(runs, "20250101T000000.000Z-0001", [replace(compared(matmul), elapsed_s=20.0)])
    completed = call(capsys, *ARGUMENTS)
    assert completed.err == "plan: 1 workload, about 32 s (from 1 earlier run)\n"
    completed = call(capsys, *ARGUMENTS, "--json")
    assert completed.err == ""
    assert "study" in json.loads(completed.out)


def test_unreadable_earlier_runs_do_not_stop_a_run(
    capsys: Capture, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchyard.errors import NotAllowed

    def refuse(*_: object) -> None:
        raise NotAllowed(f"cannot read {runs}")

    monkeypatch.setattr(Store, "refresh", refuse)
    completed = call(capsys, *ARGUMENTS)
    assert completed.code == 0
    assert completed.err.splitlines() == [
        f"warning: earlier runs are unavailable: cannot read {runs}",
        "plan: 1 workload, about 78 s (guessed from the time budget: there is no earlier run)",
    ]
