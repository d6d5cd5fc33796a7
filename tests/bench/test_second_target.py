"""Another interpreter or torch: TORCHYARD_TEST_TARGETS names interpreters, joined by colons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.second_target, pytest.mark.torch]

OTHERS = [path for path in os.environ.get("TORCHYARD_TEST_TARGETS", "").split(":") if path]
others = pytest.mark.parametrize(
    "python",
    OTHERS
    or [pytest.param("", marks=pytest.mark.skip(reason="TORCHYARD_TEST_TARGETS names none"))],
)


def torchyard(*arguments: str) -> dict[str, Any]:
    completed = subprocess.run(
        [sys.executable, "-m", "torchyard", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    # 6: measured on a busy machine, which tests may be
    assert completed.returncode in {0, 6}, completed.stderr + completed.stdout
    document: dict[str, Any] = json.loads(completed.stdout)
    return document


@others
def test_the_handshake(python: str) -> None:
    facts = torchyard("target", python)["facts"]
    assert facts["executable"] == python
    assert facts["torch"]
    assert facts["threads"] >= 1


@others
@pytest.mark.parametrize("workload", ["kernels/layered-mlp", "models/gpt"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_short_bench_against_it(tmp_path: Path, python: str, workload: str, mode: str) -> None:
    document = torchyard(
        *("bench", "--only", workload, "--mode", mode, "--threads", "1"),
        *("--target", f"mine={sys.executable}", "--target", f"other={python}"),
        *("--time", "3s", "--launches", "2", "--run-dir", str(tmp_path / "run")),
    )
    (row,) = document["comparisons"]
    assert row["failure"] is None
    assert row["accuracy"]["status"] == "pass", row["accuracy"]
    assert row["candidate_metrics"]["torch_version"] != ""
    assert row["candidate_metrics"]["peak_memory_bytes"] > 0


@others
def test_eager_against_compiled_inside_it(tmp_path: Path, python: str) -> None:
    document = torchyard(
        *("bench", "--only", "kernels/layered-mlp:layers=3", "--mode", "training"),
        *("--target", f"other={python}", "--candidate", "aot_eager", "--threads", "1"),
        *("--time", "2s", "--launches", "1", "--run-dir", str(tmp_path / "run")),
    )
    (row,) = document["comparisons"]
    assert row["failure"] is None
    assert row["accuracy"]["status"] == "pass", row["accuracy"]
