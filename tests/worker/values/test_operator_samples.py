"""Digests of operator results: equal for equal builds, different when results differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torchyard.process.programs import PROGRAM_ENTRY
from torchyard.worker.values.operator_samples import make

pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(600)]

PERTURBED = """
import torch
original = torch.nn.functional.mse_loss
def mse_loss(*args, **keywords):
    result = original(*args, **keywords)
    return result * (1 + 2 ** -20)
torch.nn.functional.mse_loss = mse_loss
"""
READS_NEW_MEMORY = """
import torch
original = torch.nn.functional.mse_loss
def mse_loss(*args, **keywords):
    return original(*args, **keywords) + 0 * torch.empty(1)[0]
torch.nn.functional.mse_loss = mse_loss
"""


def samples(folder: Path, change: str = "") -> list[dict[str, Any]]:
    """Return the rows of a new process, which runs the change first."""
    output = folder / f"rows-{len(list(folder.iterdir()))}.jsonl"
    plan = folder / "plan.json"
    plan.write_text(
        json.dumps({"samples": {"cases": ["mse_loss", "mse_loss.sum"]}, "output": str(output)})
    )
    start = folder / "start.py"
    start.write_text(
        f"import runpy, sys\n{change}\nsys.argv[1:] = [{str(plan)!r}, '--']\n"
        f"runpy.run_path({str(PROGRAM_ENTRY)!r}, run_name='__main__')\n"
    )
    subprocess.run([sys.executable, str(start)], check=True, timeout=300)
    return [json.loads(line) for line in output.read_text().splitlines()]


def digests(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["sample"]: row["digest"] for row in rows if row["kind"] == "sample"}


def test_two_processes_have_equal_digests(tmp_path: Path) -> None:
    first, second = samples(tmp_path), samples(tmp_path)
    assert first == second
    operators = [row for row in first if row["kind"] == "operator"]
    assert [row["operator"] for row in operators] == ["nn.functional.mse_loss"]
    assert {"mse_loss, seed 11", "mse_loss.sum, seed 37", "mse_loss.none, seed 23"} <= set(
        digests(first)
    )
    assert all(digests(first).values())
    assert first[-1]["kind"] == "end"


@pytest.mark.parametrize(
    "change", [PERTURBED, READS_NEW_MEMORY], ids=["perturbed", "reads new memory"]
)
def test_a_changed_operator_has_other_digests(change: str, tmp_path: Path) -> None:
    expected, changed = digests(samples(tmp_path)), digests(samples(tmp_path, change))
    assert set(expected) == set(changed)
    assert all(expected[name] != changed[name] for name in expected)


def test_case_as_a_workload() -> None:
    backward, gradients = make("mse_loss", "backward")
    with torch.no_grad():
        first, second = backward(*gradients), backward(*gradients)
    assert [one.shape for one in first] == [torch.Size([1024, 512])] * len(first)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    forward, inputs = make("mse_loss.sum")
    values, target = inputs
    torch.testing.assert_close(forward(values, target), (values - target).square().sum())
