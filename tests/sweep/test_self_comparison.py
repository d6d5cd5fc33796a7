"""A sweep that compares everything with itself, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import call

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.torch
@pytest.mark.slow
def test_two_precisions_against_themselves(capsys: Capture, home: Path) -> None:
    arguments = "--suites kernels --only */softmax --null --precisions float32,amp --time 1s"
    arguments += " --launches 1 --threads 1 --no-accuracy --calibrate"
    completed = call(capsys, "sweep", *arguments.split(), "--json")
    assert completed.code in (0, 6), completed.err
    document = json.loads(completed.out)
    assert list(document["runs"]) == ["float32", "amp"]
    assert [one["candidate"] for one in document["comparisons"]] == [
        "eager-again",
        "eager+amp-again",
    ]
    assert "calibration 1 of 1: kernels/softmax inference ready in" in completed.err
    assert "(cells: 2 from the calibration)" in completed.err
    assert Path(document["folder"], "calibration.json").is_file()
    # What was measured now tells how long it takes.
    text = call(capsys, "sweep", *arguments.split()[:-1], "--plan").out
    assert "(cells: 2 from earlier runs)" in text
    assert len(list((home / "runs").glob("2*"))) == 2
