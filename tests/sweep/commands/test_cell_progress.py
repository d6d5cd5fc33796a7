"""Progress of a sweep: the live table, and lines without a terminal."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.terminal import Terminal
from tests.sweep.sample_sweeps import cell, comparison, study, workload
from torchyard.core.comparison import Failure, Verdict
from torchyard.results.run_writer import RunWriter
from torchyard.sweep.commands.cell_progress import EndedCells, clock_text, live_table, show_sweep
from torchyard.sweep.model import CellState, CellStatus, ExecutorChoice, SweepPlan, SweepView

CELLS = tuple(
    cell(number, study(workload(name)))
    for number, name in enumerate(("matmul", "softmax", "conv2d", "mlp"), start=1)
)
PLAN = SweepPlan(name="sweep", cells=CELLS)
GOLDEN = Path(__file__).parents[2] / "golden"


def view(*states: CellState, remaining_s: float | None = None, text: str = "") -> SweepView:
    statuses = tuple(
        CellStatus(
            cell=one,
            state=state,
            text=text if state in ("failed", "running") else "",
            run=f"cells/{one.id}/run-1",
            fraction=0.25 if state == "running" else None,
        )
        for one, state in zip(CELLS, states, strict=True)
    )
    return SweepView(plan=PLAN, statuses=statuses, elapsed_s=65.0, remaining_s=remaining_s)


def drawn(shown: SweepView, recent: list[str], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, emoji=False)
    console.print(live_table(shown, recent, failed=shown.count("failed")))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The first cell has a run with a number, the second one with a failure."""
    rows = [
        comparison(workload("matmul"), speedup=1.25),
        replace(
            comparison(workload("softmax")),
            verdict=Verdict.FAILED,
            estimate=None,
            failure=Failure(
                kind="raised", phase="check", variant="inductor", message="no\n kernel\x1b[31m"
            ),
        ),
    ]
    for one, row in zip(CELLS, rows, strict=False):
        writer = RunWriter.create(
            tmp_path / f"cells/{one.id}/run-1", study=one.study, command=[], machine={}
        )
        writer.add_comparison(row)
        writer.finish("finished")
    return tmp_path


def test_cells_finished_earlier_are_not_reported(folder: Path) -> None:
    watch = EndedCells(folder)
    assert watch.update(view("done", "waiting", "waiting", "waiting")) == []
    assert watch.update(view("done", "running", "waiting", "waiting")) == []


def test_each_cell_is_reported_once_with_its_verdicts(folder: Path) -> None:
    watch = EndedCells(folder)
    watch.update(view("waiting", "waiting", "waiting", "waiting"))
    assert watch.update(view("done", "running", "waiting", "waiting")) == [
        "kernels/matmul inference: inductor faster 1.250x"
    ]
    (line,) = watch.update(view("done", "done", "waiting", "waiting"))
    assert line.startswith("kernels/softmax inference: inductor failed (no kernel")
    (line,) = watch.update(view("done", "done", "failed", "waiting", text="timed\nout after 5 s"))
    assert line == "kernels/conv2d inference: FAILED, timed out after 5 s"
    # Its run cannot be read: the sweep goes on, and so does its progress.
    assert watch.update(view("done", "done", "failed", "done")) == ["kernels/mlp inference: done"]
    assert len(watch.recent) == 4
    assert watch.failed == 2  # one was given up, one has a run without a number


def test_failures_of_an_earlier_driver_are_counted(folder: Path) -> None:
    watch = EndedCells(folder)
    assert watch.update(view("done", "done", "failed", "waiting")) == []
    assert watch.failed == 2


def test_lines_in_a_log(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with show_sweep(folder, quiet=False) as listen:
        listen(view("waiting", "waiting", "waiting", "waiting"))
        listen(view("running", "waiting", "waiting", "waiting"))
        listen(view("done", "done", "running", "waiting"))
        listen(view("done", "done", "failed", "waiting", text="hung"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[1/4 1:05] kernels/matmul inference: inductor faster 1.250x"
    assert lines[1].startswith("[2/4 1:05] kernels/softmax inference: inductor failed")
    assert lines[2] == "[3/4 1:05] kernels/conv2d inference: FAILED, hung"
    assert len(lines) == 3
    assert "\x1b" not in "".join(lines)


def test_nothing_when_quiet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with show_sweep(folder, quiet=True) as listen:
        listen(view("waiting", "waiting", "waiting", "waiting"))
        listen(view("done", "done", "done", "done"))
    assert capsys.readouterr().err == ""


def test_the_live_table() -> None:
    shown = view(
        "done", "running", "failed", "waiting", remaining_s=3725.0, text="launch 2: starting"
    )
    text = drawn(shown, ["kernels/matmul inference: inductor faster 1.250x"])
    path = GOLDEN / "sweep-board.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} was missing and is written now; look at it and run again")
    assert text == path.read_text()


def test_the_live_table_fits_any_width_and_holds_no_escapes() -> None:
    shown = view("running", "running", "running", "running", text="a\x1b]0;owned\x07" * 50)
    for width in (40, 200):
        text = drawn(shown, ["[red]not markup[/red]\x1b[0m" * 20], width)
        assert "\x1b" not in text
        assert "[red]not" in text
        assert max(len(line) for line in text.splitlines()) <= width


def test_many_jobs_are_counted_and_some_shown() -> None:
    cells = tuple(cell(number, study(workload(f"w{number}"))) for number in range(1, 31))
    plan = SweepPlan(name="wide", cells=cells, executor=ExecutorChoice(name="slurm"))
    statuses = tuple(
        CellStatus(cell=one, state="running" if number < 20 else "queued")
        for number, one in enumerate(cells)
    )
    text = drawn(SweepView(plan=plan, statuses=statuses), [])
    assert "0 of 30 cells, 20 running, 10 queued" in text
    assert "and 8 more" in text
    assert "w13" not in text


def test_on_a_terminal_the_table_goes_and_failures_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with os.fdopen(terminal.side, "w", closefd=False) as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        with show_sweep(folder, quiet=False) as listen:
            listen(view("waiting", "waiting", "waiting", "waiting"))
            listen(view("done", "running", "failed", "waiting", text="hung"))
    shown = terminal.close()
    assert "2 of 4 cells" in shown
    assert "kernels/conv2d inference: FAILED, hung" in shown
    assert "\x1b[2K" in shown  # the table is wiped


def test_clocks() -> None:
    assert [clock_text(seconds) for seconds in (0, 5, 65, 3723)] == [
        "0:00",
        "0:05",
        "1:05",
        "1:02:03",
    ]


def test_user_files_have_short_names(folder: Path) -> None:
    # GIVEN two files of the same name, one running and one failed
    names = ("/home/me/one/mine.py:Net", "/home/me/two/mine.py:Net")
    statuses = tuple(
        replace(status, cell=cell(number, study(workload(name, suite="file"))))
        for number, (name, status) in enumerate(
            zip(names, view("running", "failed", "waiting", "waiting").statuses, strict=False)
        )
    )
    shown = replace(view("waiting", "waiting", "waiting", "waiting"), statuses=statuses)
    # WHEN their progress is shown
    watch = EndedCells(folder)
    watch.update(view("waiting", "waiting", "waiting", "waiting"))
    # THEN their parent folders tell them apart
    assert watch.update(shown) == ["two/mine.py:Net inference: FAILED, no reason recorded"]
    table = drawn(shown, [])
    assert "one/mine.py:Net inference" in table
    assert "/home" not in table
