"""`torchyard values sweep` in a new process: crashes are rows, and a killed sweep is resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

OWN_CASES = """
import os, signal
import torch
from torchyard.worker.values.operator_cases import case

def crash(tensor):
    os.kill(os.getpid(), signal.SIGSEGV)

def leave(tensor):
    os._exit(3)

def refuse(tensor):
    raise NotImplementedError("not on this device")

def hang(tensor):
    import time
    time.sleep(600)

make = lambda d: [d.learned(128, 256)]
CASES = [
    case("own.first", "relu", make),
    case("own.crash", crash, make),
    case("own.second", "tanh", make),
    case("own.leave", leave, make),
    case("own.refuse", refuse, make),
    case("own.loss", "nn.functional.mse_loss", lambda d: [d.learned(256, 256), d.floats(256, 256)]),
    case("slow.hang", hang, make),
]
"""


def command(home: Path, *arguments: str) -> list[str]:
    (home / "own.py").write_text(OWN_CASES)
    return [sys.executable, "-m", "torchyard", "values", "sweep", *arguments]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "TORCHYARD_HOME": str(home / "home")}


def sweep(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(home, *arguments),
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def states(document: dict[str, Any]) -> dict[str, str]:
    return {case["case"]: case["state"] for case in document["sweep"]["cases"]}


@pytest.mark.torch
def test_a_crash_loses_one_case_only(tmp_path: Path) -> None:
    page = tmp_path / "table.md"

    ended = sweep(
        tmp_path,
        "--cases",
        str(tmp_path / "own.py"),
        "--only",
        "own.*",
        "--json",
        "--markdown",
        str(page),
    )

    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert states(document) == {
        "own.first": "done",
        "own.crash": "crashed",
        "own.second": "done",
        "own.leave": "crashed",
        "own.refuse": "unsupported",
        "own.loss": "done",
    }
    why = {case["case"]: case["why"] for case in document["sweep"]["cases"]}
    assert "signal 11" in why["own.crash"]
    assert "ended with 3" in why["own.leave"]
    # A look now and then: cases that take no time at all may pass between two of them.
    assert "/6 own." in ended.stderr
    assert "2 crashed: own.crash" in page.read_text().replace("\\", "")


@pytest.mark.torch
def test_a_killed_sweep_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    process = subprocess.Popen(
        command(
            tmp_path,
            "--cases",
            str(tmp_path / "own.py"),
            "--only",
            "[os][wl]*.[fh]*",
            "--run-dir",
            str(folder),
        ),
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    rows = folder / "rows.jsonl"
    deadline = time.monotonic() + 200
    while not (rows.is_file() and '"slow.hang", "kind": "began"' in rows.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    before = rows.read_text()
    assert '"case": "own.first"' in before

    # The folder says what is left; the hanging case is taken out of it here.
    own = tmp_path / "own.py"
    own.write_text(OWN_CASES.replace("time.sleep(600)", "return tensor * 2"))
    ended = subprocess.run(
        [sys.executable, "-m", "torchyard", "values", "sweep", "--resume", str(folder), "--json"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert states(json.loads(ended.stdout)) == {"own.first": "done", "slow.hang": "done"}
    assert rows.read_text().startswith(before)
    assert rows.read_text().count('{"case": "own.first", "kind": "began"}') == 1


@pytest.mark.torch
def test_a_case_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchyard.values.operator_sweep.model import CaseState, SweepSettings, start_sweep

    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    own = tmp_path / "own.py"
    own.write_text(OWN_CASES)
    settings = SweepSettings(
        python=sys.executable, target="here", only="slow.hang", cases_file=str(own), limit_s=2.0
    )

    found, folder = start_sweep(settings, say=lambda _: None)

    (case,) = found.cases
    assert (case.state, case.why) == (CaseState.TOO_LONG, "it took longer than 2 s")
    assert found.finished
    assert folder.parent.name == "sweeps"


@pytest.mark.torch
def test_a_pattern_that_fits_nothing_is_nothing_to_do(tmp_path: Path) -> None:
    ended = sweep(tmp_path, "--only", "nothing-of-this-name")

    assert ended.returncode == 3
    assert "no case matches nothing-of-this-name" in ended.stderr


def test_a_resumed_sweep_keeps_its_settings(tmp_path: Path) -> None:
    ended = sweep(tmp_path, "--resume", str(tmp_path), "--device", "cuda")

    assert ended.returncode == 2
    assert "--device" in ended.stderr


def test_a_folder_without_a_sweep_cannot_be_resumed(tmp_path: Path) -> None:
    ended = sweep(tmp_path, "--resume", str(tmp_path))

    assert ended.returncode == 2
    assert "is not the folder of a sweep" in ended.stderr


def test_a_target_that_is_not_there_is_reported(tmp_path: Path) -> None:
    ended = sweep(tmp_path, "--target", str(tmp_path / "no-python"))

    assert ended.returncode in (2, 4, 5)
    assert "no-python" in ended.stderr
