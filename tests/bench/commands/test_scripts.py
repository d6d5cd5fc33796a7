"""`bench --script`: the options of a training script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import call, study_of
from torchyard.bench.preparation import plan_script_block

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "train.py").write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "train.py"


def test_the_study_of_a_script(capsys: Capture, script: str, tmp_path: Path) -> None:
    options = ["--step", "Trainer.step", "--script-args", "--delay 0.1 'a b'"]
    study: Any = study_of(capsys, "--script", script, *options)
    (workload,) = study["workloads"]
    assert workload["suite"] == "steps"
    assert workload["mode"] == "training"
    assert workload["name"] == str(tmp_path / script)
    assert dict(workload["parameters"]) == {
        "folder": str(tmp_path),
        "step": "Trainer.step",
        "arguments": "--delay 0.1 'a b'",
    }
    assert study["settings"]["reseat"] == "off"
    assert [one["name"] for one in study["candidates"]] == ["inductor"]
    shown = call(capsys, "bench", "--script", script, *options, "--dry-run")
    assert "train.py training arguments=--delay 0.1 'a b' step=Trainer.step" in shown.out
    assert "folder=" not in shown.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--script", "missing.py"], "does not exist"),
        (["--script", "."], "does not exist"),
        (["--script", "train.py", "--step", "a b"], "not the name of a function"),
        (["--script", "train.py", "--step", ""], "not the name of a function"),
        (["--script", "train.py", "--script-args", "'open"], "cannot be split"),
        (["--script", "train.py", "models/gpt"], "cannot be combined with --script"),
        (["--script", "train.py", "--mode", "training"], "--mode cannot be combined"),
        (["--script", "train.py", "--batch-size", "4"], "--batch-size cannot be combined"),
        (["--script", "train.py", "--flush-l2"], "--flush-l2 cannot be combined"),
        (["models/gpt", "--step", "a"], "--step has no effect"),
        (["models/gpt", "--script-args", "a"], "--script-args has no effect"),
    ],
)
def test_options_without_effect_are_refused(
    capsys: Capture, script: str, options: list[str], words: str
) -> None:
    completed = call(capsys, "bench", *options)
    assert completed.code == 2
    assert words in completed.err
    assert "hint:" in completed.err


def test_a_block_covers_all_processes_of_a_data_loader() -> None:
    def steps(iteration_s: float, workers: int) -> int:
        plan = plan_script_block(iteration_s * 1e9, block_s=0.1, least_steps=workers)
        assert plan.samples == 1
        return plan.iterations

    assert steps(0.001, 0) == 100
    assert steps(0.05, 0) == 5
    assert steps(0.05, 8) == 8
    assert steps(2.0, 8) == 2
    assert steps(60.0, 8) == 1
