"""Programs cut out of a captured graph compute what the model computes, on the same layouts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

BODY = """
import json, sys
import torch
from torch import nn
from torchyard.worker.reduce.program import Captured, shortened
from torchyard.worker.reduce.script import script
from torchyard.worker.reduce.service import refuse_indices_out_of_range
from torchyard.worker.workload import CannotBuild


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(32, 96)
        self.norm = nn.LayerNorm(32)
        self.table = nn.Embedding(10, 32)

    def forward(self, x):
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        y.add_(1)
        index = (y[..., 0] > 0).long()
        z = y.reshape(4, -1, 32).transpose(1, 2).contiguous().transpose(1, 2)
        return z + self.table(index) * y.size(1)


torch.manual_seed(1)
net, x = Net().eval(), torch.randn(4, 8, 32)
with torch.no_grad():
    captured = Captured(net, (x,), {})
    every = list(range(len(captured.units)))
    whole = captured.program(every, {})
    result = {"operators": captured.names(), "same": torch.equal(whole.module(*whole.inputs), net(x))}
    values = {node: value for node, value in captured.values.items()}
    singles = []
    for unit in every:
        program = captured.program([unit], {})
        outputs = program.module(*program.inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        own = [n for n in captured.units[unit] if isinstance(values[n], torch.Tensor)]
        singles.append(
            all(any(torch.equal(one, values[n]) and one.stride() == values[n].stride() for n in own)
                for one in outputs)
        )
    result["singles"] = singles
    pairs = [captured.program([a, b], {}) for a in every for b in every if a < b]
    result["pairs"] = len([program.module(*program.inputs) for program in pairs])
    short = captured.program(every, {4: 2})
    result["short"] = list(short.module(*short.inputs).shape)
    result["lengths"] = captured.lengths(every)
    lookup = [unit for unit, name in enumerate(captured.names()) if "embedding" in name]
    result["refused"] = []
    for sizes in ({}, {4: 2}, {10: 1}):
        try:
            refuse_indices_out_of_range(captured.program(lookup, sizes))
        except CannotBuild as error:
            result["refused"].append(str(error))
    open(sys.argv[1], "w").write(script(short, "s.py", 'a "title"', "about", "eager", {}, "cpu"))
    for metric in ("memory", "wrong"):
        text = script(short, "s.py", "title", "about", "eager", {}, "cpu", metric)
        open(sys.argv[1] + "." + metric, "w").write(text)
trained = Captured(nn.Sequential(nn.Linear(32, 16), nn.GELU()), (x,), {})
program = trained.program([0], {4: 2})
result["gradients"] = [value.tensor.requires_grad and value.tensor.is_leaf for value in program.values]
text = script(program, "s.py", "title", "about", "eager", {}, "cpu", "wrong", True)
open(sys.argv[1] + ".training", "w").write(text)
layouts = []
for tensor in (torch.randn(4, 6, 8).permute(2, 0, 1), torch.randn(8, 1).expand(8, 6), torch.randn(8, 8).t()):
    part = shortened(tensor, {8: 4})
    index = tuple(slice(0, 4 if n == 8 else n) for n in tensor.shape)
    order = sorted(range(tensor.dim()), key=tensor.stride)
    layouts.append(torch.equal(part, tensor[index]) and order == sorted(range(part.dim()), key=part.stride))
result["layouts"] = layouts
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    path = tmp_path_factory.mktemp("reduce") / "s.py"
    done = subprocess.run(
        [sys.executable, "-c", BODY, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), path


def test_all_operators_compute_the_result_of_the_model(
    captured: tuple[dict[str, Any], Path],
) -> None:
    result, _ = captured
    assert result["same"]
    assert any("layer_norm" in one for one in result["operators"])


def test_each_operator_runs_by_itself_with_recorded_inputs(
    captured: tuple[dict[str, Any], Path],
) -> None:
    result, _ = captured
    failed = [
        name
        for name, same in zip(result["operators"], result["singles"], strict=True)
        # The recorded values are those before the in-place addition.
        if not same and "add_" not in name and "scaled_dot" not in name
    ]
    assert not failed
    assert result["pairs"] == len(result["operators"]) * (len(result["operators"]) - 1) // 2


def test_dimensions_are_shortened_in_inputs_and_arguments(
    captured: tuple[dict[str, Any], Path],
) -> None:
    result, _ = captured
    assert result["short"] == [2, 8, 32]
    assert {4, 8, 32} <= set(result["lengths"])
    assert all(result["layouts"])


def test_indices_beyond_a_shortened_table_are_found_before_a_gpu_runs_them(
    captured: tuple[dict[str, Any], Path],
) -> None:
    result, _ = captured
    (refusal,) = result["refused"]
    assert "out of range" in refusal


def test_inputs_of_programs_in_training(captured: tuple[dict[str, Any], Path]) -> None:
    result, _ = captured
    # The input of the model has no gradient; weight and bias have one.
    assert sorted(result["gradients"]) == [False, True, True]


@pytest.mark.parametrize("kind", ["memory", "wrong", "training"])
def test_scripts_of_other_metrics(
    captured: tuple[dict[str, Any], Path], tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "script.py"
    path.write_text(Path(f"{captured[1]}.{kind}").read_text("utf-8"), "utf-8")
    run = [sys.executable, "-P", str(path)]
    done = subprocess.run(
        [*run, "--json"], capture_output=True, text=True, check=False, timeout=280, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    eager, compiled = json.loads(done.stdout).values()
    assert eager == compiled
    if kind == "memory":
        assert eager > 0.0
        return
    assert 0.0 < eager < 1e-4
    # A compiled program with another result, or with NaN, has a larger error.
    text = path.read_text("utf-8")
    for change in ("3 * one", "one / 0"):
        backend = f"lambda g, _: lambda *a: [{change} for one in g(*a)]"
        path.write_text(text.replace('BACKEND = "eager"', f"BACKEND = {backend}"), "utf-8")
        done = subprocess.run(
            [*run, "--json"], capture_output=True, text=True, check=False, timeout=280, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        eager, compiled = json.loads(done.stdout).values()
        assert compiled > 100 * eager


def test_the_script_needs_only_torch(captured: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    _, path = captured
    text = path.read_text("utf-8")
    assert "torchyard" not in text.lower()
    assert str(Path.home()) not in text
    done = subprocess.run(
        [sys.executable, "-P", str(path), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"eager_ms", "compiled_ms"}
