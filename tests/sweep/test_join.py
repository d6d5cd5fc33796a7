"""Measured cells and the runs that they are joined into."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.bench.report.formats import FORMATS
from torchyard.core.comparison import Verdict
from torchyard.core.study import (
    Budget,
    MeasureSettings,
    Precision,
    Study,
    Target,
    Variant,
    Workload,
)
from torchyard.errors import NothingToDo
from torchyard.results.run_reader import read_run
from torchyard.sweep.cell import end_with_driver, place_of_job, run_cell
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.join import join_sweep
from torchyard.sweep.model import Cell, SweepLimits, SweepPlan

HERE = Target(name="here", python=sys.executable)
EAGER = Variant(name="eager", target=HERE)
AGAIN = Variant(name="eager-again", target=HERE)
CRASHING = """\
import os
import torch

class Crashing(torch.nn.Module):
    def example_inputs(self):
        return (torch.zeros(1),)

    def forward(self, x):
        os.abort()
"""


def study_of(workload: Workload, precision: Precision = "float32") -> Study:
    """As short as a study can be."""
    baseline = replace(EAGER, precision=precision)
    return Study(
        name="sweep",
        baseline=baseline,
        candidates=(replace(AGAIN, precision=precision),),
        workloads=(workload,),
        budget=Budget(time_s=0.2, max_launches=1, min_launches=1),
        settings=MeasureSettings(block_s=0.01, threads=1),
    )


def small(name: str, **parameters: int) -> Workload:
    return Workload(suite="kernels", name=name, parameters=tuple(sorted(parameters.items())))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """Two good cells of one precision, one of another, one that crashes, one that never ran."""
    place = tmp_path_factory.mktemp("sweep")
    (place / "crashing.py").write_text(CRASHING)
    crashing = Workload(suite="file", name=str(place / "crashing.py"))
    plan = SweepPlan(
        name="nightly",
        revision="abc123",
        notes=("a note",),
        limits=SweepLimits(tries=2),
        cells=(
            Cell(id="0000-matmul", study=study_of(small("matmul", size=8))),
            Cell(id="0001-crashing", study=study_of(crashing)),
            Cell(id="0002-norm", study=study_of(small("layer-norm", width=8, length=2))),
            Cell(id="0003-matmul-bf16", study=study_of(small("matmul", size=8), "bfloat16")),
            Cell(id="0004-gone", study=study_of(small("embedding"))),
        ),
    )
    folder = SweepFolder.create(place / "folder", plan)
    for cell in plan.cells[:4]:
        while folder.status(cell.id).state == "waiting":
            run_cell(folder, cell.id)
    for _ in range(2):
        attempt = folder.begin("0004-gone", place="node7")
        folder.end("0004-gone", attempt.number, "memory-limit", why="used more than 4 GiB")
    folder.log_path("0004-gone").write_text("<script>alert(1)</script> out of memory\n")
    return folder


@pytest.mark.torch
def test_a_worker_that_crashes_is_tried_again_and_then_a_row(sweep: SweepFolder) -> None:
    status = sweep.status("0001-crashing")
    assert status.state == "done"
    assert [attempt.outcome for attempt in status.attempts] == ["died", "finished"]
    (row,) = read_run(sweep.folder / status.run).comparisons
    assert row.verdict is Verdict.FAILED
    assert row.failure is not None
    assert row.failure.kind == "crashed"


@pytest.mark.torch
def test_a_finished_cell_is_left_alone(sweep: SweepFolder) -> None:
    before = sweep.attempts("0000-matmul")
    assert run_cell(sweep, "0000-matmul") == "finished"
    assert sweep.attempts("0000-matmul") == before


@pytest.mark.torch
def test_cells_are_joined_into_a_run_for_each_precision(sweep: SweepFolder, tmp_path: Path) -> None:
    home = tmp_path / "runs"
    joined = join_sweep(sweep, home)
    assert set(joined) == {"float32", "bfloat16"}
    assert sorted(path.name for path in home.iterdir()) == sorted(
        path.name for path in joined.values()
    )
    run = read_run(joined["float32"])
    assert run.state == "finished"
    assert run.study.name == "nightly float32"
    assert run.info["revision"] == "abc123"
    assert run.info["sweep"]["folder"] == str(sweep.folder)
    labels = [row.workload.name.rpartition("/")[2] for row in run.comparisons]
    assert labels == ["matmul", "crashing.py", "layer-norm", "embedding"]
    crashed, gone = run.comparisons[1].failure, run.comparisons[3].failure
    assert crashed is not None
    assert Path(crashed.log).is_file()
    assert Path(crashed.log).is_relative_to(joined["float32"])
    assert gone is not None
    assert (gone.kind, gone.phase) == ("out-of-memory", "cell")
    assert gone.message == "used more than 4 GiB (attempt 2)"
    assert run.comparisons[0].estimate is not None
    alone = read_run(sweep.folder / sweep.status("0000-matmul").run)
    assert [block for _, block in run.blocks(run.study.workloads[0])] == [
        block for _, block in alone.blocks()
    ]
    assert len(run.launches()) >= 2
    assert len(read_run(joined["bfloat16"]).comparisons) == 1


@pytest.mark.torch
@pytest.mark.parametrize("name", ["json", "markdown", "csv", "html"])
def test_every_report_reads_a_joined_run(sweep: SweepFolder, tmp_path: Path, name: str) -> None:
    text = FORMATS[name](read_run(join_sweep(sweep, tmp_path)["float32"]))
    assert "embedding" in text
    if name == "html":
        assert "<script>alert(1)" not in text


def test_nothing_is_joined_before_a_cell_is_over(tmp_path: Path) -> None:
    plan = SweepPlan(name="new", cells=(Cell(id="0000-a", study=study_of(small("matmul"))),))
    folder = SweepFolder.create(tmp_path / "sweep", plan)
    with pytest.raises(NothingToDo, match="no cell of"):
        join_sweep(folder, tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*"))


def test_a_log_that_cannot_be_read_does_not_keep_cells_from_being_joined(tmp_path: Path) -> None:
    plan = SweepPlan(
        name="new",
        limits=SweepLimits(tries=1),
        cells=(Cell(id="0000-a", study=study_of(small("matmul"))),),
    )
    folder = SweepFolder.create(tmp_path / "sweep", plan)
    folder.end("0000-a", folder.begin("0000-a", place="node7").number, "died", why="killed")
    folder.log_path("0000-a").mkdir()
    (joined,) = join_sweep(folder, tmp_path / "runs").values()
    (row,) = read_run(joined).comparisons
    assert row.failure is not None
    assert (row.failure.kind, row.failure.log_tail) == ("crashed", "")


def test_the_place_names_the_job_of_a_cluster() -> None:
    assert place_of_job({"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}).endswith(
        ", job 12_3"
    )
    assert place_of_job({"SLURM_JOB_ID": "77"}).endswith(", job 77")
    assert "job" not in place_of_job({})


def test_a_process_detects_the_loss_of_its_driver() -> None:
    assert end_with_driver({})
    assert not end_with_driver({"TORCHYARD_DRIVER": "1"})
