"""Progress, exit codes and the table of `bench`. Complete runs use a real torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.command_line import program
from tests.cli.terminal import Terminal
from torchyard.bench.commands.execution import BenchSession, exit_code_of
from torchyard.cli.progress import ComparisonCollector, show_progress
from torchyard.core.comparison import BUSY_NOTE_PREFIX, Comparison, Failure, Verdict
from torchyard.core.events import Event
from torchyard.core.study import Study, Target, Variant, Workload

GPT = Workload(suite="models", name="gpt")
HERE = Target(name="here", python=sys.executable)


def row(verdict: Verdict, *notes: str, candidate: str = "inductor") -> Comparison:
    failure = (
        Failure(kind="raised", phase="build", variant=candidate, message="no [bold]luck\x1b[0m")
        if verdict is Verdict.FAILED
        else None
    )
    return Comparison(
        workload=GPT,
        baseline="eager",
        candidate=candidate,
        verdict=verdict,
        failure=failure,
        notes=notes,
    )


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], 0),
        ([row(Verdict.FASTER)], 0),
        ([row(Verdict.SLOWER), row(Verdict.FAILED)], 0),
        ([row(Verdict.WRONG)], 9),
        ([row(Verdict.WRONG), row(Verdict.FAILED)], 9),
        ([row(Verdict.WRONG), row(Verdict.SAME)], 0),
        ([replace(row(Verdict.SAME), untrusted=("it remembers results",))], 6),
        ([row(Verdict.FAILED)], 5),
        ([row(Verdict.FAILED), row(Verdict.FAILED)], 5),
        ([row(Verdict.FASTER, f"{BUSY_NOTE_PREFIX}: 60 of 80 pairs were disturbed")], 6),
        ([row(Verdict.FASTER, f"a {BUSY_NOTE_PREFIX} inside a note")], 0),
    ],
)
def test_the_exit_code_follows_the_rows(rows: list[Comparison], code: int) -> None:
    assert exit_code_of(rows) == code


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        (["no-torch"], 4),
        (["no-torch", "no-python"], 4),
        (["no-torch", "crashed"], 5),
    ],
)
def test_a_target_without_torch_is_a_missing_tool(kinds: list[str], code: int) -> None:
    failed = row(Verdict.FAILED)
    assert failed.failure is not None
    rows = [replace(failed, failure=replace(failed.failure, kind=kind)) for kind in kinds]
    assert exit_code_of(rows) == code
    assert exit_code_of([*rows, row(Verdict.SAME)]) == 0


def test_the_last_record_of_a_comparison_is_kept() -> None:
    collector = ComparisonCollector()
    for made in (row(Verdict.FASTER), row(Verdict.SAME, candidate="b"), row(Verdict.UNDECIDED)):
        collector.listen(Event(kind="comparison", text="", comparison=made))
    assert [made.verdict for made in collector.comparisons] == [Verdict.UNDECIDED, Verdict.SAME]


def test_a_log_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    collector = ComparisonCollector()
    with show_progress(collector, quiet=False) as listener:
        listener(Event(kind="run", text="starting", fraction=0.0))
        listener(Event(kind="launch", text="launch 1", workload="models/gpt", fraction=0.25))
        listener(Event(kind="warning", text="clock\x1b[2J fell", workload="models/gpt"))
        listener(
            Event(kind="comparison", text="faster", fraction=0.5, comparison=row(Verdict.FASTER))
        )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "[  0%   0:00] starting",
        "[ 25%   0:00] warning: models/gpt: clock�[2J fell",
        "[ 50%   0:00] faster",
    ]
    assert len(collector.comparisons) == 1


def test_quiet_shows_nothing_and_still_counts(capsys: pytest.CaptureFixture[str]) -> None:
    collector = ComparisonCollector()
    with show_progress(collector, quiet=True) as listener:
        listener(Event(kind="comparison", text="faster", comparison=row(Verdict.FASTER)))
    assert capsys.readouterr() == ("", "")
    assert len(collector.comparisons) == 1


def test_a_terminal_gets_a_bar_with_times() -> None:
    code = (
        "from torchyard.cli.progress import ComparisonCollector, show_progress\n"
        "from torchyard.core.events import Event\n"
        "with show_progress(ComparisonCollector(), quiet=False) as listener:\n"
        "    listener(Event(kind='warning', text='[bold]hot'))\n"
        "    listener(Event(kind='phase', text='[red]warming up', workload='gpt', fraction=0.5))\n"
    )
    terminal = Terminal()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=terminal.side,
        env={"TERM": "xterm", "COLUMNS": "120", "PATH": os.environ["PATH"]},
    )
    process.wait(timeout=60)
    shown = terminal.close()
    assert process.returncode == 0
    assert "50%" in shown
    assert "0:00:00" in shown
    assert "[red]warming up (gpt)" in shown


def test_the_table_and_what_is_missing_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    study = Study(
        name="small",
        baseline=Variant(name="eager", target=HERE),
        candidates=(Variant(name="inductor", target=HERE, backend="inductor"),),
        workloads=(GPT,),
    )
    session = BenchSession(study=study, folder=Path("/nowhere"), quiet=True)
    session.comparisons = [row(Verdict.FAILED)]
    session.print_table()
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "models/gpt inference" in captured.out
    assert "no [bold]luck" in captured.out
    assert "\x1b" not in captured.out


@pytest.mark.torch
def test_a_run_from_options_to_report(tmp_path: Path) -> None:
    # GIVEN a short comparison on a small workload
    arguments = ["bench", "--only", "kernels/matmul:size=64", "--candidate", "eager"]
    arguments += ["--time", "2s", "--launches", "2", "--run-dir", str(tmp_path / "run")]
    # WHEN it is run with every kind of output
    completed = program(*arguments, "--json", "--html", "r.html", "--csv", "r.csv", cwd=tmp_path)
    # THEN stdout is one JSON object, stderr says where the run is, and the files are there
    assert completed.code in {0, 6}, completed.err
    document = json.loads(completed.out)
    (made,) = document["comparisons"]
    assert made["candidate"] == "eager-again"
    assert completed.err.startswith("plan: 1 workload, ")
    assert document["run"]["time_estimate"]["workloads"] == 1
    assert f"run folder: {tmp_path / 'run'}" in completed.err
    assert (tmp_path / "r.html").stat().st_size > 1000
    assert (tmp_path / "r.csv").read_text().count("\n") == 2
    # AND the folder is not taken twice without being asked
    again = program(*arguments, cwd=tmp_path)
    assert again.code == 2
    assert "--replace" in again.err


@pytest.mark.torch
def test_a_target_says_what_it_is() -> None:
    import torch

    shown = program("target", f"mine={sys.executable}")
    assert shown.code == 0, shown.err
    assert torch.__version__ in shown.out
    document = json.loads(program("target", sys.executable, "--json").out)
    assert document["target"]["python"] == sys.executable
    assert document["facts"]["torch"]


def test_an_interpreter_without_torch_is_reported(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True
    )
    completed = program("target", str(tmp_path / "bare"))
    assert completed.code in {4, 5}
    assert "torch" in completed.err
    assert "Traceback" not in completed.err


@pytest.mark.torch
def test_ctrl_c_in_a_run_keeps_and_shows_what_there_is(tmp_path: Path) -> None:
    # GIVEN a run whose first workload cannot be built, so that its row is made at once
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('not today')\n")
    command = [sys.executable, "-m", "torchyard", "bench", "--only", str(broken)]
    command += ["--only", "matmul:size=64", "--candidate", "eager", "--time", "10m"]
    process = subprocess.Popen(
        [*command, "--run-dir", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    # WHEN Ctrl-C comes while the second one is measured
    for line in process.stderr:
        if "kernels/matmul" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    # THEN the first row is shown and the run can be reported
    assert process.returncode == 130, err
    assert "not today" in out
    assert "interrupted: " in err
    report = program("report", str(tmp_path / "run"), "--json")
    document = json.loads(report.out)
    assert document["run"]["state"] == "interrupted"
    assert document["comparisons"][0]["verdict"] == "failed"
