"""`torchyard sweep` on the command line: plans, errors, runs, resume, and output.

Most sweeps here compare in a target without a torch: real cells in real processes, which all fail.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import call
from torchyard.cli.commands import COMMANDS, HIDDEN_COMMANDS, root_help
from torchyard.sweep.commands import manage
from torchyard.sweep.commands import run as sweep_options
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.model import EXECUTORS
from torchyard.sweep.report.formats import SWEEP_FORMATS

Capture = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A target without torch."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    return f"bare={folder / 'bin' / 'python'}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def few(bare: str, *more: str) -> list[str]:
    """Two cells that fail at once."""
    only = ["--only", "kernels/matmul", "--only", "kernels/softmax"]
    return ["sweep", "--suites", "kernels", *only, "--target", bare, *more]


def plan_of(capsys: Capture, *arguments: str) -> dict[str, Any]:
    completed = call(capsys, "sweep", "--plan", "--json", *arguments)
    assert completed.code == 0, completed.err
    document: dict[str, Any] = json.loads(completed.out)
    assert document["schema"] == 1
    return document


def test_choices_are_those_of_the_types() -> None:
    assert sweep_options.EXECUTORS == EXECUTORS
    assert tuple(SWEEP_FORMATS) == manage.FORMATS


def test_the_hidden_command_works_and_is_on_no_page(capsys: Capture, home: Path) -> None:
    assert not set(HIDDEN_COMMANDS) & set(COMMANDS)
    assert "sweep-cell" not in root_help()
    assert "sweep-cell" not in call(capsys, "--help").out
    assert "Measure one cell" in call(capsys, "sweep-cell", "--help").out
    completed = call(capsys, "sweep-cell", str(home), "0001-x")
    assert completed.code == 2
    assert "is not the folder of a sweep" in completed.err


@pytest.mark.parametrize(
    ("arguments", "code", "what", "hint"),
    [
        (["--suites", "model"], 2, "--suites: unknown suite 'model'", "'models'"),
        (["--suites", "models", "--modes", "train"], 2, "unknown mode 'train'", "'training'"),
        (["--suites", "models", "--precisions", "fp16"], 2, "unknown precision", "'float16'"),
        (["--suites", "models", "--backends", "indutor"], 2, "'indutor'", "'inductor'"),
        (["--suites", "models", "--executor", "slrum"], 2, "unknown executor", "'slurm'"),
        (["--suites", "models", "--shard", "5/4"], 2, "no shard 5 of 4", "1/4"),
        (["--suites", "models", "--shard", "0/4"], 2, "no shard 0 of 4", "1/4"),
        (["--suites", "models", "--shard", "99/100"], 3, "shard 99 of 100 is empty", "shards"),
        (["--suites", "models", "--gpus", "1"], 2, "--gpus: no effect", "--executor slurm"),
        (["--suites", "models", "--tries", "0"], 2, "--tries: '0' is out of", "at least 1"),
        (["--suites", "models", "--cell-limit", "x"], 2, "--cell-limit: 'x'", "60s"),
        (["--suites", "models", "--only", "gtp"], 3, "no workload selected", "--only"),
        (["--suits", "models"], 2, "there is no option '--suits'", "'--suites'"),
        (["--plan"], 3, "no suite or workload given", "--suites"),
        (["nowhere.toml"], 2, "there is no study file 'nowhere.toml'", "path"),
        (["show", "2025"], 2, "there is no sweep '2025'", "torchyard sweep"),
        (["show"], 3, "there is no sweep yet", "torchyard sweep"),
        (["cancel"], 2, "Missing argument 'SWEEP'", "cancel --help"),
        (["--resume", "latest"], 3, "there is no sweep yet", "torchyard sweep"),
        (
            ["--suites", "models", "--batch-size", "largest", "--at-most", "2"],
            2,
            "the largest batch size cannot be searched for with 2 concurrent cells",
            "--at-most",
        ),
        (
            ["--suites", "models", "--batch-size", "largest", "--calibrate"],
            2,
            "--calibrate cannot be combined with a batch size search",
            "set a batch size",
        ),
        (["--suites", "models", "--budget", "soon"], 2, "--budget: 'soon'", "60s"),
        (
            ["--suites", "models", "--executor", "slurm", "--budget", "30m"],
            2,
            "--budget needs --executor local",
            "remove --budget",
        ),
        (["--suites", "models", "--batch-size", "large"], 2, "--batch-size: 'large'", "like 8"),
        (
            ["--suites", "models", "--executor", "slurm", "--calibrate"],
            2,
            "--calibrate needs --executor local",
            "remove --calibrate",
        ),
    ],
)
def test_wrong_use_ends_with_a_hint(
    capsys: Capture, home: Path, arguments: list[str], code: int, what: str, hint: str
) -> None:
    completed = call(capsys, "sweep", *arguments)
    assert completed.code == code, completed.err
    assert completed.out == ""
    first, *others = completed.err.splitlines()
    assert what in first
    assert any(line.startswith("  hint: ") and hint in line for line in others)
    assert not (home / "sweeps").exists()


def test_a_plan_is_shown_and_nothing_is_made(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "sweep", "--suites", "models", "--plan", "--exclude", "x*")
    assert completed.code == 0
    assert completed.out.startswith("sweep sweep: 8 cells, 8 comparisons\n")
    assert "note        the pattern 'x*' matches no workload" in completed.out
    assert "0002-models-gpt-inference-float32  models/gpt inference" in completed.out
    assert completed.err == ""
    assert not (home / "sweeps").exists()


def test_lists_have_commas_or_are_given_again(capsys: Capture, home: Path) -> None:
    assert not home.exists()
    commas = plan_of(capsys, "--suites", "models,kernels", "--precisions", "float32, amp")
    again = plan_of(
        capsys, "--suites", "kernels", "--suites", "models", "--precisions", "float32,amp"
    )
    assert [one["id"] for one in commas["plan"]["cells"]] == [
        one["id"] for one in again["plan"]["cells"]
    ]


def test_single_workloads_join_the_suites(capsys: Capture, home: Path, tmp_path: Path) -> None:
    assert not home.exists()
    mine = tmp_path / "mine.py"
    mine.write_text("")
    arguments = [
        "--workload",
        str(mine),
        "--workload",
        "kernels/matmul:size=8",
        "--suites",
        "models",
    ]
    labels = [one["study"]["workloads"][0] for one in plan_of(capsys, *arguments)["plan"]["cells"]]
    assert labels[0]["name"] == str(mine)
    assert (labels[1]["name"], labels[1]["parameters"]) == ("matmul", [["size", 8]])
    assert {one["suite"] for one in labels[2:]} == {"models"}


def test_options_reach_the_plan(capsys: Capture, home: Path) -> None:
    assert not home.exists()
    arguments = "--suites models --modes training --backends inductor,aot_eager --batch-size 2"
    arguments += " --optimizer-step --time 5s --precision-goal 2% --margin 3% --launches 4"
    arguments += " --threads 1 --memory-limit 2GiB --cell-limit 10m --tries 4 --null --shard 1/2"
    arguments += " --executor slurm --partition gpu --account us --qos fast --gpus h200:1"
    arguments += (
        " --exclusive --job-time 2h --at-most 3 --slurm constraint=a --revision r1 --note n"
    )
    plan = plan_of(capsys, *arguments.split())["plan"]
    study = plan["cells"][0]["study"]
    assert study["workloads"][0]["mode"] == "training"
    assert study["workloads"][0]["optimizer_step"] is True
    assert study["workloads"][0]["batch_size"] == 2
    assert [one["name"] for one in study["candidates"]] == ["eager-again", "eager-again-2"]
    assert study["budget"]["time_s"] == 5.0
    assert study["budget"]["precision_goal"] == pytest.approx(0.02)
    assert study["budget"]["max_launches"] == 4
    assert study["settings"]["memory_limit_bytes"] == 2 << 30
    assert plan["limits"] == {"cell_s": 600.0, "tries": 4, "budget_s": None}
    local = plan_of(capsys, "--suites", "models", "--budget", "30m")["plan"]
    assert local["limits"]["budget_s"] == 1800.0
    assert (plan["shard"], plan["null"]) == ([1, 2], True)
    assert (plan["revision"], plan["notes"]) == ("r1", ["n"])
    assert dict(plan["executor"]["options"]) == {
        "partition": "gpu",
        "account": "us",
        "qos": "fast",
        "gpus": "h200:1",
        "exclusive": True,
        "time": "2h",
        "at-most": "3",
        "slurm-constraint": "a",
    }


def test_options_override_the_study_file(capsys: Capture, home: Path, tmp_path: Path) -> None:
    assert not home.exists()
    path = tmp_path / "nightly.toml"
    path.write_text('[sweep]\nsuites = ["models"]\nprecisions = ["amp"]\nonly = ["*/gpt"]\n')
    plan = plan_of(capsys, str(path))["plan"]
    assert plan["name"] == "nightly"
    assert [one["id"] for one in plan["cells"]] == ["0001-models-gpt-inference-amp"]
    plan = plan_of(capsys, str(path), "--precisions", "float32", "--only", "*/lstm")["plan"]
    assert [one["id"] for one in plan["cells"]] == ["0001-models-lstm-inference-float32"]
    # Other suites, and still the modes of the file.
    path.write_text('[sweep]\nsuites = ["models"]\nmodes = ["training"]\n')
    plan = plan_of(capsys, str(path), "--suites", "kernels", "--only", "*/matmul")["plan"]
    assert [one["id"] for one in plan["cells"]] == ["0001-kernels-matmul-training-float32"]


def test_a_sweep_whose_cells_all_fail_keeps_every_row(
    capsys: Capture, home: Path, bare: str
) -> None:
    completed = call(capsys, *few(bare, "--json"))
    assert completed.code == 4, completed.err
    document = json.loads(completed.out)
    assert document["schema"] == 1
    assert [one["state"] for one in document["cells"]] == ["done", "done"]
    assert [one["failure"]["kind"] for one in document["comparisons"]] == ["no-torch"] * 2
    assert list(document["runs"]) == ["float32"]
    assert (home / "runs" / document["runs"]["float32"] / "run.json").is_file()
    # The plan comes first, then a line for each cell.
    lines = completed.err.splitlines()
    assert lines[0] == "sweep sweep: 2 cells, 2 comparisons"
    folder = Path(document["folder"])
    assert f"sweep folder: {folder}" in lines
    assert [line for line in lines if line.startswith("[1/2 ")]
    assert "every comparison failed" in lines

    # Again: nothing is repeated, and no second run is made of the same cells.
    again = call(capsys, "sweep", "--resume", "latest", "--json", "-q")
    assert again.code == 4
    second = json.loads(again.out)
    assert second["runs"] == document["runs"]
    assert [len(one["attempts"]) for one in second["cells"]] == [1, 1]
    assert len(list((home / "runs").glob("2*"))) == 1

    listed = json.loads(call(capsys, "sweep", "list", "--json").out)["sweeps"]
    assert [(one["folder"], one["states"]) for one in listed] == [(str(folder), {"done": 2})]
    assert "2 done" in call(capsys, "sweep", "list").out
    shown = call(capsys, "sweep", "show", folder.name[:8])
    assert shown.code == 0
    line = r"0001-kernels-matmul-inference-float32 +done +1 +inductor failed\n"
    assert re.search(line, shown.out)
    assert "kernels-matmul-inference-float32: inductor no-torch (start): bare+default:" in shown.out
    assert shown.err == ""
    record = json.loads(call(capsys, "sweep", "show", str(folder), "--json").out)
    assert record["plan"]["name"] == "sweep"
    assert len(record["cells"]) == 2
    said = call(capsys, "sweep", "report", "latest")
    assert said.code == 0
    assert "kernels/matmul" in said.out
    page = folder.parent / "sweep.html"
    assert call(capsys, "sweep", "report", "--output", str(page)).code == 0
    assert "<html" in page.read_text()[:200]
    completed = call(capsys, "sweep", "cancel", "latest")
    assert completed.code == 3
    assert "the sweep is not running" in completed.err
    completed = call(capsys, "sweep", "--resume", str(folder), "--plan")
    assert completed.code == 3
    assert "the sweep has no open cells" in completed.err


def test_the_table_says_why(capsys: Capture, home: Path, bare: str, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    completed = call(capsys, *few(bare, "-q", "--run-dir", str(place)))
    assert completed.code == 4
    assert completed.err == "every comparison failed\n"
    assert "float32: run 2" in completed.out
    assert "No module named 'torch'" in completed.out
    assert SweepFolder.open(place).runs()
    assert not (home / "sweeps").exists()
    completed = call(capsys, *few(bare, "--run-dir", str(place)))
    assert completed.code == 2
    assert "is not empty" in completed.err


def test_what_cannot_be_resumed(capsys: Capture, home: Path, tmp_path: Path, bare: str) -> None:
    study = tmp_path / "study.toml"
    study.write_text("")
    place = tmp_path / "sweep"
    place.mkdir()
    completed = call(
        capsys, "sweep", str(study), "--resume", str(place), "--only", "x", "--env", "a=b=c"
    )
    assert completed.code == 2
    assert f"--resume cannot be combined with {study}, --only, --env" in completed.err
    completed = call(capsys, "sweep", "--resume", str(place))
    assert completed.code == 2
    assert "is not the folder of a sweep" in completed.err
    (place / "sweep.json").write_text('{"format": 999, "torchyard": "99.0"}')
    completed = call(capsys, "sweep", "--resume", str(place))
    assert completed.code == 8
    assert "was written by a newer Torchyard (99.0)" in completed.err
    (home / "sweeps").mkdir(parents=True)
    place.rename(home / "sweeps" / "20250101")
    assert "unreadable: " in call(capsys, "sweep", "list").out
    record = plan_of(capsys, *few(bare)[1:])["plan"]
    (place := tmp_path / "driven").mkdir()
    (place / "sweep.json").write_text(json.dumps(record))
    with SweepFolder.open(place).driving():
        completed = call(capsys, "sweep", "--resume", str(place), "--calibrate")
        planned = call(capsys, "sweep", "--resume", str(place), "--plan")
    assert completed.code == 2
    assert f"process {os.getpid()} on " in completed.err
    assert "calibration" not in completed.err
    assert planned.code == 0


def test_cancel_and_resume_after_an_interrupt(capsys: Capture, home: Path, tmp_path: Path) -> None:
    # An interpreter that never says a word: the first cell waits for it.
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    place = tmp_path / "sweep"
    arguments = few(f"silent={silent}", "--run-dir", str(place), "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "torchyard", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TORCHYARD_HOME": str(home)},
    )
    try:
        deadline_s = time.monotonic() + 60
        while not list(place.glob("cells/*/run-1/run.json")):
            assert time.monotonic() < deadline_s
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        shown = call(capsys, "sweep", "show", str(place))
        assert re.search(r"-inference-float32 +running", shown.out)
        assert f"torchyard sweep --resume {place}" in shown.err
        completed = call(capsys, "sweep", "cancel", str(place))
        assert completed.code == 0
        assert f"process {process.pid} was interrupted\n" in completed.err
        assert "still running" not in completed.err
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"resume with: torchyard sweep --resume {place}" in err
    assert "interrupted: 2 waiting" in err
    document = json.loads(out)
    assert [one["state"] for one in document["cells"]] == ["waiting", "waiting"]
    outcomes = [one["outcome"] for cell in document["cells"] for one in cell["attempts"]]
    assert outcomes == ["interrupted"]
    assert document["runs"] == {}
    # The interpreter is fixed; the interrupted cell is measured again.
    silent.write_text("#!/bin/sh\nexit 3\n")
    completed = call(capsys, "sweep", "--resume", str(place), "--json")
    assert completed.code == 4, completed.err
    attempts = [len(one["attempts"]) for one in json.loads(completed.out)["cells"]]
    assert max(attempts) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_budget_in_which_no_launch_finishes(capsys: Capture, home: Path, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    place = tmp_path / "sweep"
    completed = call(
        capsys, *few(f"silent={silent}", "--run-dir", str(place), "--budget", "15s", "--json")
    )
    assert completed.code == 124, completed.err
    assert "the time budget was used up: 2 of 2 cells without a finished launch" in completed.err
    assert f"resume with: torchyard sweep --resume {place}" in completed.err
    cells = json.loads(completed.out)["cells"]
    assert [one["state"] for one in cells] == ["waiting", "waiting"]
    assert all("no launch: the time budget" in one["text"] for one in cells)
    assert "no launch: the time budget" in call(capsys, "sweep", "report", str(place)).out
    # More time measures them; a result of no cell was there to be lost.
    silent.write_text("#!/bin/sh\nexit 3\n")
    completed = call(capsys, "sweep", "--resume", str(place), "--budget", "5m", "--json")
    assert completed.code == 4, completed.err
    assert [one["state"] for one in json.loads(completed.out)["cells"]] == ["done", "done"]


def test_a_cell_over_its_limit_is_a_row_with_its_log(
    capsys: Capture, home: Path, tmp_path: Path
) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    arguments = few(
        f"silent={silent}", "--exclude", "*/softmax", "--cell-limit", "4s", "--tries", "1"
    )
    completed = call(capsys, *arguments)
    assert completed.code == 5, completed.err
    assert "kernels/matmul inference: FAILED, timed out after 4 s" in completed.err
    assert "time        4 to 4 s" not in completed.err
    assert "timed out after 4 s" in completed.out
    shown = call(capsys, "sweep", "show")
    assert "0001-kernels-matmul-inference-float32: timed out after 4 s" in shown.out
    log = re.search(r"^  log: (.*)$", shown.out, re.MULTILINE)
    assert log is not None
    assert Path(log[1]).is_file()
    assert len(list((home / "runs").glob("2*"))) == 1
