"""Sweeps that search for the largest batch of each cell: real workers, one search for all attempts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.tiny_bench import HERE, QUICK, write_file
from torchyard.core.events import Event
from torchyard.core.study import Budget, Study, Variant, Workload
from torchyard.errors import ResultsDamaged
from torchyard.results.run_reader import read_run
from torchyard.sweep.cell import run_cell, with_batch
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.join import join_sweep
from torchyard.sweep.model import Cell, CellBatch, SweepPlan
from torchyard.sweep.rows import read_sweeps
from torchyard.sweep.summary import sweep_summary

pytestmark = pytest.mark.torch

CELL = "0001-file-mine-inference-float32"
FITS_THREE = """
    import torch

    def hold(samples):
        if samples.shape[0] > 3:
            raise torch.OutOfMemoryError("more than three")
        return samples * 2

    def make(batch_size=1):
        return hold, torch.ones(batch_size, 8)
"""
NO_BATCH = """
    import torch

    def make():
        return torch.nn.Linear(8, 8), torch.randn(3, 8)
"""


def sweep(place: Path, text: str, *, batch_size: int | None = None) -> SweepFolder:
    name = write_file(place, "mine.py", text)
    study = Study(
        name="sweep",
        baseline=Variant(name="eager", target=HERE),
        candidates=(Variant(name="again", target=HERE),),
        workloads=(Workload(suite="file", name=name, batch_size=batch_size),),
        budget=Budget(time_s=0.5, max_launches=1),
        settings=QUICK,
    )
    plan = SweepPlan(name="sweep", cells=(Cell(id=CELL, study=study),), largest_batches=True)
    return SweepFolder.create(place / "sweep", plan)


def test_a_cell_is_measured_with_the_largest_batch_that_fits(tmp_path: Path) -> None:
    folder = sweep(tmp_path, FITS_THREE)
    events: list[Event] = []
    assert run_cell(folder, CELL, listener=events.append) == "finished"
    searched = [event.text for event in events if event.text.startswith("searching: ")]
    assert any("batch size 4" in text and "more than three" in text for text in searched)
    # The cell is what was measured, in every table; its id and the plan stay.
    status = folder.status(CELL)
    assert status.cell.label.endswith("mine.py inference b3")
    assert folder.plan.cells[0].study.workloads[0].batch_size is None
    run = read_run(folder.folder / status.run)
    assert [row.workload.batch_size for row in run.comparisons] == [3]
    assert any("batch size 3, the largest that fits" in note for note in run.info["notes"])
    parts = read_sweeps([folder.folder])
    (row,) = sweep_summary(parts.plan, parts.statuses, parts.runs).rows
    assert (row.cell, row.workload) == (CELL, status.cell.study.workloads[0].label)
    assert row.speedup is not None
    (joined,) = join_sweep(folder, tmp_path / "runs").values()
    assert read_run(joined).study.workloads == status.cell.study.workloads


def test_a_size_that_was_found_is_not_searched_for_again(tmp_path: Path) -> None:
    folder = sweep(tmp_path, FITS_THREE)
    folder.begin(CELL, place="here")
    folder.save_batch(CELL, CellBatch(over=True, batch_size=2, text="found before"))
    events: list[Event] = []
    cell, notes = with_batch(folder, folder.status(CELL).cell, events.append)
    assert cell.study.workloads[0].batch_size == 2
    assert (events, notes) == ([], ("found before",))


def test_a_size_that_is_named_stays(tmp_path: Path) -> None:
    folder = sweep(tmp_path, FITS_THREE, batch_size=1)
    cell, notes = with_batch(folder, folder.status(CELL).cell, lambda _event: None)
    assert (cell, notes) == (folder.plan.cells[0], ())


def test_a_workload_without_a_batch_stays_and_says_so(tmp_path: Path) -> None:
    folder = sweep(tmp_path, NO_BATCH)
    assert run_cell(folder, CELL) == "finished"
    status = folder.status(CELL)
    assert status.cell == folder.plan.cells[0]
    notes = read_run(folder.folder / status.run).info["notes"]
    assert any("batch size not searched, because" in note for note in notes)


def test_a_running_search_is_shown(tmp_path: Path) -> None:
    folder = sweep(tmp_path, FITS_THREE)
    folder.begin(CELL, place="here")
    folder.save_batch(CELL, CellBatch(text="searching: batch size 2, eager: fits"))
    status = folder.status(CELL)
    assert (status.state, status.text) == ("running", "searching: batch size 2, eager: fits")
    assert status.cell == folder.plan.cells[0]


@pytest.mark.parametrize("text", ['{"batch_size": "many"}', '{"over": 3}'])
def test_a_damaged_size_names_its_file(tmp_path: Path, text: str) -> None:
    folder = sweep(tmp_path, FITS_THREE)
    folder.begin(CELL, place="here")
    (folder.folder / "cells" / CELL / "batch.json").write_text(text)
    with pytest.raises(ResultsDamaged, match=r"batch\.json: not a batch size") as raised:
        folder.status(CELL)
    assert raised.value.why
    assert raised.value.hint


def test_missing_torch_is_not_a_batch_size_failure(tmp_path: Path) -> None:
    folder = sweep(tmp_path, FITS_THREE)
    missing = replace(HERE, python=str(tmp_path / "nowhere" / "python"))
    study = replace(
        folder.plan.cells[0].study,
        baseline=Variant(name="eager", target=missing),
        candidates=(Variant(name="again", target=missing),),
    )
    plan = replace(folder.plan, cells=(Cell(id=CELL, study=study),))
    other = SweepFolder.create(tmp_path / "other", plan)
    assert run_cell(other, CELL) == "finished"
    (row,) = read_run(other.folder / other.status(CELL).run).comparisons
    assert row.failure is not None
    assert row.failure.kind == "no-python"
    assert not other.batch(CELL).over
