"""Cells as text, and selection of a sweep."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sweep.sample_sweeps import cell, comparison, study, workload
from torchyard.core.comparison import Failure, Verdict
from torchyard.errors import NothingToDo, UsageError
from torchyard.sweep.commands.cell_progress import (
    cell_table,
    counts_text,
    failed_text,
    sweep_row,
    sweep_table,
)
from torchyard.sweep.commands.manage import find_sweep, sweep_folders
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.model import Attempt, CellStatus, ExecutorChoice, SweepPlan

CELLS = tuple(
    cell(number, study(workload(name)))
    for number, name in enumerate(("matmul", "softmax", "conv2d", "mlp"), start=1)
)
HUNG = Attempt(
    number=1,
    place="node3, job 7_1",
    outcome="time-limit",
    why="timed out\nafter 5 s",
    log="logs/0003-conv2d-float32.log",
)
CRASHED = Attempt(number=2, place="node4", outcome="died", why="crashed (SIGSEGV)", log=HUNG.log)
STATUSES = (
    CellStatus(cell=CELLS[0], state="done", attempts=(Attempt(number=1, outcome="finished"),)),
    CellStatus(
        cell=CELLS[1],
        state="running",
        attempts=(Attempt(number=1),),
        text="launch 2: measuring",
        fraction=0.256,
    ),
    CellStatus(cell=CELLS[2], state="failed", attempts=(HUNG, CRASHED), text="crashed (SIGSEGV)"),
    CellStatus(cell=CELLS[3], state="waiting"),
)


ROWS = {
    CELLS[0].id: [
        comparison(workload("matmul"), speedup=1.25),
        replace(
            comparison(workload("matmul"), candidate="x"),
            verdict=Verdict.FAILED,
            estimate=None,
            failure=Failure(
                kind="raised",
                phase="check",
                variant="x",
                message="no\n kernel",
                log="/sweep/cells/1/log",
            ),
        ),
    ]
}


def test_one_line_for_each_cell() -> None:
    assert cell_table(STATUSES, ROWS) == (
        "CELL                  STATE          TRIES  NOW\n"
        "0001-matmul-float32   done           1      inductor faster 1.250x, x failed\n"
        "0002-softmax-float32  running 25.6%  1      launch 2: measuring\n"
        "0003-conv2d-float32   failed         2      crashed (SIGSEGV)\n"
        "0004-mlp-float32      waiting"
    )


def test_why_cells_failed_and_where_their_logs_are() -> None:
    assert failed_text(STATUSES, ROWS, Path("/sweep")) == (
        "0001-matmul-float32: x raised (check): no kernel\n"
        "  log: /sweep/cells/1/log\n"
        "0003-conv2d-float32: crashed (SIGSEGV)\n"
        "  attempt 1 on node3, job 7_1: time-limit, timed out after 5 s\n"
        "  attempt 2 on node4: died, crashed (SIGSEGV)\n"
        "  log: /sweep/logs/0003-conv2d-float32.log"
    )
    assert failed_text(STATUSES[:2], {}, Path("/sweep")) == ""
    lost = CellStatus(cell=CELLS[0], state="failed", attempts=(Attempt(number=1),))
    assert failed_text([lost], {}, Path()).splitlines() == [
        "0001-matmul-float32: no reason recorded",
        "  attempt 1: lost",
    ]


def test_counts_are_in_one_order() -> None:
    assert counts_text(STATUSES) == "1 done, 1 running, 1 waiting, 1 failed"
    assert counts_text([]) == "no cells"


def test_a_list_of_sweeps() -> None:
    plan = SweepPlan(
        name="nightly",
        cells=CELLS,
        shard=(2, 4),
        null=True,
        executor=ExecutorChoice(name="slurm"),
        created="2025-01-31T12:30:00Z",
    )
    rows = [sweep_row(Path("/home/20250131T123000.000Z-ab12"), plan, STATUSES)]
    (head, line) = sweep_table(rows).splitlines()
    assert head.split() == ["SWEEP", "CREATED", "NAME", "EXECUTOR", "CELLS"]
    assert re.split(" {2,}", line) == [
        "20250131T123000.000Z-ab12",
        "2025-01-31 12:30",
        "nightly 2/4 A/A",
        "slurm",
        "1 done, 1 running, 1 waiting, 1 failed",
    ]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    for name in ("20250101T000000.000Z-0001", "20250101T000000.000Z-0002", "20250202T-0003"):
        SweepFolder.create(tmp_path / "sweeps" / name, SweepPlan(name="x", cells=CELLS))
    (tmp_path / "sweeps" / "20260101T000000.000Z-half").mkdir()
    return tmp_path / "sweeps"


def test_which_sweep_is_meant(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [path.name[-4:] for path in sweep_folders()] == ["0003", "0002", "0001"]
    assert find_sweep("latest") == kept / "20250202T-0003"
    assert find_sweep("202502") == kept / "20250202T-0003"
    assert find_sweep("20250101T000000.000Z-0001") == kept / "20250101T000000.000Z-0001"
    monkeypatch.chdir(kept)
    assert find_sweep("20250101T000000.000Z-0002") == Path("20250101T000000.000Z-0002")


def test_a_sweep_that_is_not_clear(kept: Path) -> None:
    assert kept.is_dir()
    with pytest.raises(UsageError, match="is ambiguous: it matches 2 sweeps"):
        find_sweep("20250101")
    with pytest.raises(UsageError, match="there is no sweep 'lates'") as caught:
        find_sweep("lates")
    assert "'latest'" in caught.value.hint
    with pytest.raises(UsageError, match="there is no sweep ''"):
        find_sweep("")


def test_no_sweep_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "nowhere"))
    assert sweep_folders() == []
    with pytest.raises(NothingToDo):
        find_sweep("latest")
