"""Training with modules in evaluation mode: which mode the worker trains in, and that gradients are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from torchyard.worker.bench.service import WorkerService

pytestmark = pytest.mark.torch

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.linear(x))

def make():
    return Net(), (torch.randn(4, 8),), lambda output: output.square().sum()
"""


def built(tmp_path: Path, **workload: Any) -> Any:
    path = tmp_path / "net.py"
    path.write_text(MODEL, "utf-8")
    service = WorkerService()
    fields = {
        "suite": "file",
        "name": str(path),
        "mode": "training",
        "device": "cpu",
        "batch_size": None,
        "optimizer_step": False,
        "parameters": [],
        **workload,
    }
    variant = {"name": "eager", "backend": "eager", "precision": "float32"}
    service.build(fields, [variant], 1)
    (model,) = service._models.values()
    return model


@pytest.mark.parametrize("eval_mode", [False, True])
def test_modules_are_in_the_requested_mode(tmp_path: Path, eval_mode: bool) -> None:
    model = built(tmp_path, eval_mode=eval_mode)
    assert model.training is True
    assert {part.training for part in model.module.modules()} == {not eval_mode}
    before = model.module.norm.running_mean.clone()
    model.built.loss(model.module(*model.args)).backward()
    assert all(one.grad is not None for one in model.parameters)
    # Batch normalization in evaluation mode does not update its statistics.
    assert torch.equal(before, model.module.norm.running_mean) is eval_mode


def test_requests_of_earlier_releases_have_no_such_field(tmp_path: Path) -> None:
    assert built(tmp_path).module.training is True
