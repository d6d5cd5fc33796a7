"""Relocation on a GPU: other addresses, the same numbers, no recompilation; not with CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker.in_process_service import make_service, variant, write_file

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(256, 512)
            self.second = nn.Linear(512, 256)
            self.second.weight = nn.Parameter(self.first.weight.detach().t().contiguous())

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

        def example_inputs(self):
            return (torch.randn(64, 256),)

        def loss(self, output):
            return output.square().mean()
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    return write_file(tmp_path, "net.py", NET)


def addresses(model: Any) -> list[int]:
    return [tensor.data_ptr() for tensor in model.state() + model.inputs()]


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_addresses_change_and_results_stay(net: str, mode: str, backend: str) -> None:
    import torch
    from torch._dynamo.utils import counters

    service = make_service(net, variant("one", backend), mode=mode, device="cuda")
    runner = service.runner("one")
    before, _ = runner.results(3)
    graphs = counters["stats"]["unique_graphs"]
    seen = [addresses(runner.model)]
    for seed in range(6):
        answer = service.reseat(seed, "pages")
        assert answer["moved_bytes"] > 0
        assert answer["held_bytes"] == 0
        after, _ = runner.results(3)
        for group, tensors in before.items():
            for x, y in zip(tensors, after[group], strict=True):
                assert torch.equal(x, y)
        seen.append(addresses(runner.model))
        assert all(address % 16 == 0 for address in seen[-1])
    assert len({tuple(each) for each in seen}) == 7
    assert counters["stats"]["unique_graphs"] == graphs


def test_memory_does_not_grow(net: str) -> None:
    import torch

    service = make_service(net, device="cuda")
    held = []
    for seed in range(40):
        service.reseat(seed, "pages")
        held.append(torch.cuda.memory_allocated())
    assert max(held[20:]) <= max(held[:20]) + (256 << 20)


def test_nothing_moves_where_a_cuda_graph_was_recorded(net: str) -> None:
    import torch

    service = make_service(net, variant("one", "inductor:reduce-overhead"), device="cuda")
    runner = service.runner("one")
    with runner.context():
        for _ in range(4):
            runner.caller()()
    torch.cuda.synchronize()
    before = addresses(runner.model)
    answer = service.reseat(1, "pages")
    assert answer["moved_bytes"] == 0
    assert answer["held_bytes"] > 0
    assert addresses(runner.model) == before
