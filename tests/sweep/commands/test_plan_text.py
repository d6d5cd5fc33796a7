"""The plan as text: counts, sources of estimates, and expected failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.sweep.sample_sweeps import cell, study, workload
from torchyard.bench.time_estimate import Range
from torchyard.sweep.commands.plan_text import rough_time, sweep_plan_text
from torchyard.sweep.cost_estimate import KnownCost, MachineResources, estimate_sweep
from torchyard.sweep.model import ExecutorChoice, SweepLimits, SweepPlan

GOLDEN = Path(__file__).parents[2] / "golden"

CELLS = (
    cell(1, study(workload("matmul"))),
    cell(2, study(workload("softmax"))),
    cell(3, study(workload("gpt", suite="models", mode="training"), candidates=("inductor", "x"))),
    cell(4, study(workload("gpt", suite="models"), precision="amp")),
)
PLAN = SweepPlan(name="nightly", cells=CELLS)
HERE = MachineResources(free_bytes=64 << 30, machine_bytes=16 << 30)


def golden(name: str, text: str) -> None:
    """To accept a new text, delete the golden file and run the test twice."""
    path = GOLDEN / name
    if not path.exists():
        path.write_text(text + "\n")
        pytest.fail(f"{path.name} was missing and is written now; look at it and run again")
    assert text + "\n" == path.read_text()


def test_nothing_is_known_yet() -> None:
    golden("sweep-plan-bound.txt", sweep_plan_text(PLAN, estimate_sweep(PLAN, resources=HERE)))


def test_batch_sizes_that_are_searched_for() -> None:
    plan = replace(PLAN, largest_batches=True)
    text = sweep_plan_text(plan, estimate_sweep(plan, resources=HERE))
    assert "\n  batch size  the largest that fits; the search is not included" in text
    assert "searched for" not in sweep_plan_text(PLAN, estimate_sweep(PLAN, resources=HERE))


def test_everything_that_can_be_known() -> None:
    costs = {
        CELLS[0].id: KnownCost(
            source="history",
            time_s=Range(low=20.0, high=50.0),
            size_bytes=200_000.0,
            tensor_bytes=3 << 20,
        ),
        CELLS[1].id: KnownCost(
            source="calibration", time_s=Range(low=30.0, high=90.0), worker_bytes=700 << 20
        ),
        CELLS[2].id: KnownCost(
            source="calibration",
            time_s=Range(low=60.0, high=600.0),
            worker_bytes=20 << 30,
            compiling_unknown=True,
        ),
        CELLS[3].id: KnownCost(
            source="calibration",
            time_s=Range(low=0.0, high=4.0),
            unsupported="cannot-build: no module transformers",
        ),
    }
    plan = replace(PLAN, shard=(1, 4), null=True, limits=SweepLimits(cell_s=1800.0, tries=1))
    text = sweep_plan_text(
        plan,
        estimate_sweep(plan, [costs], resources=HERE),
        all_cells=True,
        notes=["the pattern 'x*' matches no workload"],
    )
    golden("sweep-plan-known.txt", text)


def test_jobs_of_a_cluster() -> None:
    options = (("at-most", "8"), ("gpus", "1"), ("partition", "gpu"))
    plan = replace(PLAN, executor=ExecutorChoice(name="slurm", options=options))
    text = sweep_plan_text(plan, estimate_sweep(plan, resources=HERE))
    assert "as slurm jobs (at-most 8, gpus 1, partition gpu)" in text
    assert "with 8 jobs at a time, without queue time" in text
    assert "on this machine" not in text
    plan = replace(PLAN, executor=ExecutorChoice(name="slurm"))
    text = sweep_plan_text(plan, estimate_sweep(plan, resources=HERE))
    assert "of job time in total; the cluster decides how many jobs run at a time" in text


def test_a_disk_that_may_be_too_small() -> None:
    here = MachineResources(free_bytes=1000, machine_bytes=16 << 30)
    text = sweep_plan_text(PLAN, estimate_sweep(PLAN, resources=here))
    assert "1000 B free: may not be enough" in text


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.0, 0.2, "about 1 s"),
        (6.0, 44.0, "6 to 44 s"),
        (45.0, 600.0, "45 s to 10 min"),
        (130.0, 800.0, "2 to 13 min"),
        (3000.0, 7200.0, "50 min to 2.0 h"),
        (7200.0, 36_001.0, "2.0 to 10 h"),
        (600.0, 610.0, "about 10 min"),
    ],
)
def test_estimates_are_rounded(low: float, high: float, said: str) -> None:
    assert rough_time(Range(low=low, high=high)) == said


def test_only_some_of_many_are_named() -> None:
    cells = tuple(cell(number, study(workload(f"w{number}"))) for number in range(1, 9))
    costs = {one.id: KnownCost(source="calibration", unsupported="no timm") for one in cells}
    plan = SweepPlan(name="many", cells=cells)
    text = sweep_plan_text(plan, estimate_sweep(plan, [costs]))
    assert "w5 inference (no timm); and 3 more" in text
    assert "w6" not in text
