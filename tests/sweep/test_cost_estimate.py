"""The cost estimate of a sweep: order of sources, ranges, and rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sweep.sample_sweeps import cell, comparison, study, workload
from torchyard.bench.time_estimate import CONTROLLER_S, Range, measuring_s
from torchyard.core.comparison import Comparison, Failure, VariantMetrics, Verdict
from torchyard.core.study import Budget, MeasureSettings, Study, Workload
from torchyard.machine.identity import machine_name
from torchyard.results.index.store import Store
from torchyard.results.run_writer import RunWriter
from torchyard.sweep.cost_estimate import (
    Calibration,
    KnownCost,
    MachineResources,
    compile_ranges,
    costs_from_calibration,
    costs_from_runs,
    estimate_sweep,
    machine_of_plan,
    read_resources,
)
from torchyard.sweep.model import ExecutorChoice, SweepLimits, SweepPlan

MACHINE = {"cpu": "Example 9000", "cores": "2", "architecture": "aarch64"}
HERE = machine_name({"machine": MACHINE})
FAILED = Failure(kind="cannot-build", phase="build", variant="eager", message="no timm\nmore")


def plan_of(
    *names: str, budget: Budget | None = None, executor: ExecutorChoice | None = None
) -> SweepPlan:
    cells = tuple(
        cell(number, replace(study(workload(name)), budget=budget or Budget()))
        for number, name in enumerate(names, start=1)
    )
    return SweepPlan(name="sweep", cells=cells, executor=executor or ExecutorChoice())


def row(one: Workload, *, elapsed_s: float, speedup: float = 1.2) -> Comparison:
    return replace(comparison(one, speedup=speedup), elapsed_s=elapsed_s)


def keep_run(
    home: Path,
    name: str,
    rows: Sequence[Comparison],
    *,
    start_s: float = 10.0,
    machine: dict[str, str] = MACHINE,
    budget: Budget | None = None,
) -> None:
    """A run as `bench` leaves it."""
    whole = Study(
        name="earlier",
        baseline=study(rows[0].workload).baseline,
        candidates=study(rows[0].workload).candidates,
        workloads=tuple(dict.fromkeys(one.workload for one in rows)),
        budget=budget or Budget(),
    )
    writer = RunWriter.create(home / name, study=whole, command=["bench"], machine=machine)
    for label in dict.fromkeys(one.workload.label for one in rows):
        for launch, seconds in enumerate((start_s, start_s / 5)):
            writer.add_launch({"workload": label, "launch": launch, "start_s": seconds})
    for one in rows:
        writer.add_comparison(one)
    writer.finish("finished")


def known_in(home: Path, plan: SweepPlan, machine: str = HERE) -> dict[str, KnownCost]:
    with Store.open(home) as store:
        store.refresh()
        return costs_from_runs(plan, store, machine=machine)


def test_without_anything_known_the_budget_is_the_bound() -> None:
    estimate = estimate_sweep(plan_of("matmul", "softmax"))
    assert estimate.count("budget") == 2
    assert estimate.time_s == measuring_s(Budget()).times(2)
    assert estimate.time_s.high == 2 * 60.0
    assert all(one.compiling_unknown for one in estimate.cells)
    assert estimate.size_source == "guess"
    assert 0 < estimate.size_bytes.low < estimate.size_bytes.high
    assert estimate.largest("worker_bytes") is None
    assert estimate.too_large() == []


@pytest.mark.parametrize(
    ("budget", "low", "high"),
    [
        (Budget(time_s=60.0), 0.6, 60.0),
        (Budget(time_s=60.0, precision_goal=0.0), 60.0, 60.0),
        (Budget(time_s=60.0, max_launches=1, min_launches=1), 60.0, 120.0),
        (Budget(time_s=2.0), 0.6, 2.0),
        (Budget(time_s=60.0, min_launches=20), 6.0, 120.0),
    ],
)
def test_measuring_ends_between_the_first_analysis_and_the_time(
    budget: Budget, low: float, high: float
) -> None:
    assert measuring_s(budget) == Range(low=low, high=high)


def test_slow_starts_lengthen_a_short_session() -> None:
    quick = measuring_s(Budget(time_s=60.0), start_s=1.0)
    slow = measuring_s(Budget(time_s=60.0), start_s=40.0)
    assert quick.high == pytest.approx(61.0)
    assert slow.low == pytest.approx(40.6)
    assert slow.high == pytest.approx(100.0)
    # One launch only, if no other fits.
    assert measuring_s(Budget(time_s=1.0), start_s=30.0).low == pytest.approx(1.0)


def test_kept_runs_tell_the_time_of_the_same_cell(tmp_path: Path) -> None:
    plan = plan_of("matmul", "softmax")
    keep_run(tmp_path, "20250101T000000.000Z-0001", [row(workload("matmul"), elapsed_s=30.0)])
    costs = known_in(tmp_path, plan)
    assert set(costs) == {plan.cells[0].id}
    time_s = costs[plan.cells[0].id].time_s
    assert time_s is not None
    # The first launch took 10 s to be ready, with its compiling.
    assert time_s.low == pytest.approx((CONTROLLER_S + 40.0) / 1.5)
    assert time_s.high == pytest.approx((CONTROLLER_S + 40.0) * 1.5)
    estimate = estimate_sweep(plan, [costs])
    assert (estimate.count("history"), estimate.count("budget")) == (1, 1)
    assert estimate.time_s.low == pytest.approx((CONTROLLER_S + 40.0) / 1.5 + 0.6)
    assert estimate.size_source == "history"


def test_several_runs_widen_the_range_and_only_the_newest_count(tmp_path: Path) -> None:
    for day, elapsed_s in ((1, 500.0), (2, 20.0), (3, 30.0), (4, 40.0)):
        keep_run(
            tmp_path,
            f"2025010{day}T000000.000Z-0001",
            [row(workload("matmul"), elapsed_s=elapsed_s)],
        )
    plan = plan_of("matmul")
    time_s = known_in(tmp_path, plan)[plan.cells[0].id].time_s
    assert time_s is not None
    assert (time_s.low, time_s.high) == pytest.approx(
        ((CONTROLLER_S + 30.0) / 1.5, (CONTROLLER_S + 50.0) * 1.5)
    )


def test_another_budget_makes_the_end_uncertain(tmp_path: Path) -> None:
    keep_run(
        tmp_path,
        "20250101T000000.000Z-0001",
        [row(workload("matmul"), elapsed_s=8.0)],
        budget=Budget(time_s=8.0),
    )
    plan = plan_of("matmul", budget=Budget(time_s=60.0))
    time_s = known_in(tmp_path, plan)[plan.cells[0].id].time_s
    assert time_s is not None
    assert (time_s.low, time_s.high) == pytest.approx(((CONTROLLER_S + 18.0) / 1.5, 15.0 + 62.0))
    # A long run bounds what a short budget will truncate.
    short = plan_of("matmul", budget=Budget(time_s=2.0))
    time_s = known_in(tmp_path, short)[short.cells[0].id].time_s
    assert time_s is not None
    assert time_s.high == pytest.approx((CONTROLLER_S + 10.0 + 4.0) * 1.5)


def test_an_undecided_row_may_take_the_whole_time_again(tmp_path: Path) -> None:
    undecided = replace(row(workload("matmul"), elapsed_s=20.0), verdict=Verdict.UNDECIDED)
    keep_run(tmp_path, "20250101T000000.000Z-0001", [undecided])
    plan = plan_of("matmul")
    time_s = known_in(tmp_path, plan)[plan.cells[0].id].time_s
    assert time_s is not None
    assert time_s.high == pytest.approx(15.0 + 62.0)


def test_slow_starts_took_longer_than_the_budget_and_will_again(tmp_path: Path) -> None:
    # As measured on a busy machine: 5 s allowed, 22 s to start a launch.
    budget = Budget(time_s=5.0)
    slow = replace(row(workload("matmul"), elapsed_s=26.2), verdict=Verdict.UNDECIDED)
    keep_run(tmp_path, "20250101T000000.000Z-0001", [slow], start_s=25.2, budget=budget)
    plan = plan_of("matmul", budget=budget)
    time_s = known_in(tmp_path, plan)[plan.cells[0].id].time_s
    assert time_s is not None
    assert time_s.low < 25.2 + 26.2 < time_s.high


def test_other_machines_candidates_and_failures_tell_nothing(tmp_path: Path) -> None:
    other = {**MACHINE, "cpu": "Another"}
    one = workload("matmul")
    keep_run(tmp_path, "20250101T000000.000Z-0001", [row(one, elapsed_s=30.0)], machine=other)
    keep_run(
        tmp_path,
        "20250102T000000.000Z-0001",
        [replace(row(one, elapsed_s=30.0), candidate="aot_eager")],
    )
    failed = replace(
        row(one, elapsed_s=30.0), verdict=Verdict.FAILED, failure=FAILED, estimate=None
    )
    keep_run(tmp_path, "20250103T000000.000Z-0001", [failed])
    training = row(workload("matmul", mode="training"), elapsed_s=30.0)
    keep_run(tmp_path, "20250104T000000.000Z-0001", [training])
    plan = plan_of("matmul")
    assert known_in(tmp_path, plan) == {}
    # On a cluster the machine is not known before: any machine tells more than none.
    assert set(known_in(tmp_path, plan, machine="")) == {plan.cells[0].id}


def test_a_damaged_run_is_passed_over(tmp_path: Path) -> None:
    keep_run(tmp_path, "20250101T000000.000Z-0001", [row(workload("matmul"), elapsed_s=30.0)])
    plan = plan_of("matmul")
    with Store.open(tmp_path) as store:
        store.refresh()
        (tmp_path / "20250101T000000.000Z-0001" / "run.json").write_text("{")
        assert costs_from_runs(plan, store, machine=HERE) == {}


def test_size_of_a_run_is_shared_by_its_workloads_and_kept_twice(tmp_path: Path) -> None:
    names = ("matmul", "softmax", "conv2d", "mlp")
    keep_run(
        tmp_path,
        "20250101T000000.000Z-0001",
        [row(workload(name), elapsed_s=30.0) for name in names],
    )
    folder = tmp_path / "20250101T000000.000Z-0001"
    whole = sum(path.lstat().st_size for path in folder.rglob("*"))
    plan = plan_of("matmul", "softmax")
    estimate = estimate_sweep(plan, [known_in(tmp_path, plan)])
    total = 2 * 2 * whole / 4
    assert estimate.size_bytes == Range(low=total / 2, high=total * 2)


def test_memory_of_tensors_comes_from_runs_on_either_device(tmp_path: Path) -> None:
    metrics = VariantMetrics(peak_memory_bytes=3 << 30)
    on_gpu = Workload(suite="kernels", name="softmax", device="cuda")
    for number, one in enumerate((workload("matmul"), on_gpu), start=1):
        keep_run(
            tmp_path,
            f"2025010{number}T000000.000Z-0001",
            [replace(row(one, elapsed_s=5.0), candidate_metrics=metrics)],
        )
    cells = (cell(1, study(workload("matmul"))), cell(2, study(on_gpu)))
    plan = SweepPlan(name="sweep", cells=cells)
    estimate = estimate_sweep(
        plan, [known_in(tmp_path, plan, "")], resources=MachineResources(machine_bytes=2 << 30)
    )
    assert [one.tensor_bytes for one in estimate.cells] == [3 << 30, None]
    assert [one.device_bytes for one in estimate.cells] == [None, 3 << 30]
    assert [one.cell for one in estimate.too_large()] == [cells[0].id]


def test_a_calibration_tells_what_runs_do_not(tmp_path: Path) -> None:
    plan = plan_of("matmul", "softmax")
    seen = [
        Calibration(workload=workload(name), ready_s=5.0, iteration_s=0.1, worker_bytes=size << 20)
        for name, size in (("matmul", 300), ("softmax", 500))
    ]
    keep_run(tmp_path, "20250101T000000.000Z-0001", [row(workload("matmul"), elapsed_s=30.0)])
    calibrated = costs_from_calibration(plan, seen, compiling={"inductor": Range(low=3, high=9)})
    estimate = estimate_sweep(plan, [known_in(tmp_path, plan), calibrated])
    first, second = estimate.cells
    assert (first.source, second.source) == ("history", "calibration")
    # Runs know the time better, and only a calibration knows the memory of a process.
    assert (first.worker_bytes, first.tensor_bytes) == (300 << 20, 200)
    assert second.time_s.low == pytest.approx(5.0 + 0.6 + 8.0)
    assert second.time_s.high == pytest.approx(5.0 + 65.0 + 9.0 + 2 * 8.0 + 20 * 0.1)
    assert not second.compiling_unknown
    largest = estimate.largest("worker_bytes")
    assert largest is not None
    assert largest[1].label == "kernels/softmax inference"


def test_a_calibration_without_compile_times_says_so() -> None:
    plan = plan_of("matmul")
    costs = costs_from_calibration(plan, [Calibration(workload=workload("matmul"), ready_s=1.0)])
    assert estimate_sweep(plan, [costs]).cells[0].compiling_unknown


def test_what_cannot_run_stays_in_the_plan_with_its_reason() -> None:
    plan = plan_of("matmul", "softmax")
    seen = [Calibration(workload=workload("matmul"), ready_s=4.0, failure=FAILED)]
    estimate = estimate_sweep(plan, [costs_from_calibration(plan, seen)])
    assert len(estimate.cells) == 2
    assert estimate.cells[0].unsupported == "cannot-build: no timm"
    assert estimate.cells[0].time_s == Range(low=0.0, high=8.0)
    assert estimate.cells[1].source == "budget"


def test_compile_times_of_a_candidate_on_any_workload(tmp_path: Path) -> None:
    rows = [
        comparison(workload("matmul"), compile_s=4.0),
        comparison(workload("softmax"), compile_s=12.0),
        comparison(workload("mlp"), compile_s=None),
        comparison(workload("matmul"), candidate="aot_eager", compile_s=99.0),
    ]
    keep_run(tmp_path, "20250101T000000.000Z-0001", rows)
    with Store.open(tmp_path) as store:
        store.refresh()
        ranges = compile_ranges(plan_of("conv2d"), store, machine=HERE)
    assert ranges == {"inductor": Range(low=4.0, high=12.0)}


def test_jobs_side_by_side_share_the_time() -> None:
    def on_slurm(*options: tuple[str, str]) -> SweepPlan:
        return plan_of("a", "b", "c", "d", executor=ExecutorChoice(name="slurm", options=options))

    here = MachineResources(machine_bytes=1 << 30, free_bytes=5)
    alone = estimate_sweep(plan_of("a", "b", "c", "d"), resources=here)
    shared = estimate_sweep(on_slurm(("at-most", "4")), resources=here)
    open_end = estimate_sweep(on_slurm(), resources=here)
    assert shared.at_a_time == 4
    assert shared.time_s == alone.time_s.times(0.25)
    assert open_end.at_a_time is None
    assert open_end.time_s == alone.time_s
    # Memory of this machine says nothing of a node's.
    assert (alone.machine_bytes, shared.machine_bytes) == (1 << 30, None)


def test_limits_of_a_worker_are_bounds_too() -> None:
    one = replace(study(workload("matmul")), settings=MeasureSettings(memory_limit_bytes=100))
    plan = SweepPlan(name="sweep", cells=(cell(1, one),))
    costs = {plan.cells[0].id: KnownCost(source="calibration", worker_bytes=101)}
    estimate = estimate_sweep(plan, [costs])
    assert estimate.limit_bytes == 100
    assert [item.cell for item in estimate.too_large()] == [plan.cells[0].id]


def test_no_cell_takes_longer_than_its_limit_allows() -> None:
    plan = replace(plan_of("matmul"), limits=SweepLimits(cell_s=15.0, tries=2))
    assert estimate_sweep(plan).time_s == Range(low=0.6, high=30.0)
    plan = replace(plan, limits=SweepLimits(cell_s=5.0, tries=1))
    assert estimate_sweep(plan).time_s == Range(low=0.6, high=5.0)


def test_the_middle_of_each_range_is_what_is_expected() -> None:
    plan = plan_of("matmul")
    costs = {plan.cells[0].id: KnownCost(source="history", time_s=Range(low=10.0, high=30.0))}
    assert estimate_sweep(plan, [costs]).expected_s() == {plan.cells[0].id: 20.0}


def test_this_machine(tmp_path: Path) -> None:
    resources = read_resources(tmp_path / "not" / "yet" / "there")
    assert resources.free_bytes is not None
    assert resources.free_bytes > 0
    assert resources.machine_bytes is not None
    assert resources.machine_bytes > 1 << 20
    assert machine_of_plan(plan_of("matmul")) not in ("", "unknown")
    assert machine_of_plan(plan_of("matmul", executor=ExecutorChoice(name="slurm"))) == ""
