"""Parallel cells on one machine: prepared in parallel, timed one at a time."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from tests.sweep.test_driver import plan_of
from torchyard.core.study import Budget, MeasureSettings, Study, Target, Variant, Workload
from torchyard.errors import UsageError
from torchyard.results.run_reader import read_run
from torchyard.sweep.cell import run_cell
from torchyard.sweep.execution import SweepDriver
from torchyard.sweep.executors.interface import open_executor
from torchyard.sweep.executors.local import LocalExecutor, read_at_most
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.model import Cell, ExecutorChoice, SweepPlan, SweepView

HERE = Target(name="here", python=sys.executable)

PROGRAM = """\
import json, os, sys, time
from pathlib import Path
from torchyard.process.timing_turn import TimingTurn
from torchyard.sweep.folder import SweepFolder

folder, cell = SweepFolder.open(Path(sys.argv[1])), sys.argv[2]
attempt = folder.begin(cell, place="here")
(folder.folder / (cell + ".begun")).touch()
while len(list(folder.folder.glob("*.begun"))) < 3:  # three begin together, however slow their start
    time.sleep(0.005)
spans = []
turn = TimingTurn.of_environment()
for _ in range(2):
    with turn:
        began = time.monotonic()
        time.sleep(0.4)
        spans.append(["prepare", began, time.monotonic()])
        turn.alone()
        began = time.monotonic()
        time.sleep(0.1)
        spans.append(["time", began, time.monotonic()])
(folder.folder / (cell + ".json")).write_text(json.dumps(spans))
folder.end(cell, attempt.number, "finished")
"""


def drive(folder: SweepFolder, executor: LocalExecutor) -> list[SweepView]:
    views: list[SweepView] = []
    SweepDriver(folder, executor, listener=views.append, pause_s=0.02).run()
    return views


def test_the_requested_number_of_cells_runs(tmp_path: Path) -> None:
    folder = SweepFolder.create(tmp_path / "sweep", plan_of("a", "b", "c", "d", "e"))
    executor = LocalExecutor(
        lambda cell: [sys.executable, "-c", PROGRAM, str(folder.folder), cell],
        folder.log_path,
        at_most=3,
        turn_folder=folder.folder / "turn",
    )
    views = drive(folder, executor)
    assert [one.state for one in views[-1].statuses] == ["done"] * 5
    assert max(view.count("running") for view in views) == 3
    spans = [
        (cell.cell.id, *span)
        for cell in views[-1].statuses
        for span in json.loads((folder.folder / f"{cell.cell.id}.json").read_text())
    ]
    together = 0
    for cell, kind, began, ended in spans:
        for other, other_kind, other_began, other_ended in spans:
            if cell != other and began < other_ended and other_began < ended:
                # Not the work of a worker, which would be paused while another cell is timed.
                assert (kind, other_kind) != ("time", "time")
                together += kind == other_kind
    assert together > 0


def test_limits_count_for_all_of_them(tmp_path: Path) -> None:
    folder = SweepFolder.create(tmp_path / "sweep", plan_of("hangs", "good", tries=1))
    executor = LocalExecutor(
        lambda cell: [sys.executable, "-c", f"import time; time.sleep({600 * ('hangs' in cell)})"],
        folder.log_path,
        limit_s=4.0,
        at_most=2,
        turn_folder=tmp_path / "turn",
    )
    hangs, good = drive(folder, executor)[-1].statuses
    assert hangs.text == "timed out after 8 s"
    assert good.text == "its process ended without recording an outcome"


def test_an_interrupt_ends_them_all(tmp_path: Path) -> None:
    executor = LocalExecutor(
        lambda _cell: [sys.executable, "-c", "import time; time.sleep(600)"],
        lambda cell: tmp_path / cell,
        at_most=2,
        turn_folder=tmp_path / "turn",
    )
    executor.submit(["a", "b", "c"])
    jobs, _ = executor.poll()
    assert [job.state for job in jobs] == ["running", "running", "queued"]
    assert executor.detach() == "the running cells were stopped and will be measured again"
    assert executor.poll() == ([], [])


@pytest.mark.parametrize("said", [0, -1, "many", 1.5])
def test_invalid_number(said: object) -> None:
    with pytest.raises(UsageError, match="at-most") as caught:
        read_at_most({"at-most": said})  # type: ignore[dict-item]
    assert caught.value.hint


def test_the_plan_says_how_many(tmp_path: Path) -> None:
    choice = ExecutorChoice(options=(("at-most", 4),))
    opened = open_executor(choice, tmp_path, lambda cell: [cell], lambda _: tmp_path / "log")
    assert isinstance(opened, LocalExecutor)
    assert opened._at_most == 4


@pytest.mark.torch
def test_real_cells_are_timed_one_at_a_time(tmp_path: Path) -> None:
    eager = Variant(name="eager", target=HERE)
    again = Variant(name="again", target=HERE, options=(("inference-mode", True),))
    cells = tuple(
        Cell(
            id=f"{number:04d}-{name}",
            study=Study(
                name="sweep",
                baseline=eager,
                candidates=(again,),
                workloads=(Workload(suite="kernels", name=name),),
                budget=Budget(time_s=120.0, launch_s=0.3, min_launches=2, max_launches=2),
                settings=MeasureSettings(threads=1, check_accuracy=False),
            ),
        )
        for number, name in enumerate(("matmul", "softmax"))
    )
    plan = SweepPlan(name="sweep", cells=cells, executor=ExecutorChoice(options=(("at-most", 2),)))
    folder = SweepFolder.create(tmp_path / "sweep", plan)
    executor = open_executor(
        plan.executor,
        folder.folder,
        lambda cell: [sys.executable, "-m", "torchyard", "sweep-cell", str(folder.folder), cell],
        folder.log_path,
    )
    assert isinstance(executor, LocalExecutor)
    views = drive(folder, executor)
    assert [one.state for one in views[-1].statuses] == ["done", "done"]
    assert max(view.count("running") for view in views) == 2
    spans = []
    for status in views[-1].statuses:
        run = read_run(folder.folder / status.run)
        by_launch: dict[int, list[tuple[int, int]]] = {}
        for _, block in run.blocks():
            span = (block.started_ns, block.started_ns + block.wall_ns)
            by_launch.setdefault(block.launch, []).append(span)
        spans += [
            (min(begin for begin, _ in found), max(end for _, end in found))
            for found in by_launch.values()
        ]
    spans.sort()
    assert len(spans) == 4
    for (_, ended), (began, _) in itertools.pairwise(spans):
        assert ended <= began


@pytest.mark.torch
@pytest.mark.parametrize("beside_others", [True, False])
def test_too_little_memory_may_pass_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside_others: bool
) -> None:
    """Other cells may have had it; alone, it would be too little again."""
    (tmp_path / "large.py").write_text(
        "import torch\n"
        "class Large(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        raise MemoryError('too large')\n"
        "def make():\n"
        "    return Large(), torch.ones(3)\n"
    )
    if beside_others:
        monkeypatch.setenv("TORCHYARD_TURN", str(tmp_path / "turn"))
    study = Study(
        name="sweep",
        baseline=Variant(name="eager", target=HERE),
        candidates=(Variant(name="again", target=HERE, options=(("inference-mode", True),)),),
        workloads=(Workload(suite="file", name=str(tmp_path / "large.py")),),
        budget=Budget(time_s=1.0, max_launches=1),
        settings=MeasureSettings(threads=1),
    )
    plan = SweepPlan(name="sweep", cells=(Cell(id="0000-large", study=study),))
    folder = SweepFolder.create(tmp_path / "sweep", plan)
    assert run_cell(folder, "0000-large") == ("died" if beside_others else "finished")
    (attempt,) = folder.attempts("0000-large")
    assert ("out-of-memory" in attempt.why) is beside_others
