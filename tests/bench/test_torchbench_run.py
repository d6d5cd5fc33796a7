"""`torchyard bench` on models of a checkout: measured rows, and rows with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import call

TREE = Path(__file__).parents[1] / "torchbench_tree"


@pytest.mark.torch
@pytest.mark.slow
def test_training_of_one_model_and_the_reason_of_another(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = [f"torchbench/{name}:path={TREE}" for name in ("two_heads", "needs_package")]
    budget = ("--time", "2s", "--launches", "1", "--run-dir", str(tmp_path / "run"))
    completed = call(
        capsys,
        *("bench", "--only", names[0], "--only", names[1], "--mode", "training"),
        *("--candidate", "aot_eager", *budget, "-q", "--json"),
    )
    good, bad = json.loads(completed.out)["comparisons"]
    assert good["failure"] is None
    assert good["accuracy"]["status"] == "pass"
    assert good["candidate_metrics"]["loss"] == "mean of the outputs"
    assert good["candidate_metrics"]["batch_size"] == 3
    assert bad["failure"]["kind"] == "cannot-build"
    assert "torchyard_package_that_is_not_there" in bad["failure"]["message"]
    assert "--set model=needs_package" in bad["failure"]["hint"]
