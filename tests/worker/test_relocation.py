"""Relocation: other addresses, the same numbers, no recompilation, no leak."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.in_process_service import make_service, variant, write_file

pytestmark = pytest.mark.torch

HOOKED = """
    import torch

    class Hooked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(16, 4)
            self.inner.weight.register_post_accumulate_grad_hook(halve)

        def forward(self, x):
            return self.inner(x)

    def halve(parameter):
        parameter.grad /= 2

    def make():
        return Hooked(), torch.ones(3, 16), torch.sum
"""
METHODS = pytest.mark.parametrize("method", ["pages", "heap"])

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(32, 16)
            self.inner = nn.Linear(16, 16)
            self.norm = nn.BatchNorm1d(16)
            self.head = nn.Linear(16, 32, bias=False)
            self.head.weight = self.embedding.weight
            self.register_buffer("table", torch.randn(4, 16))
            self.register_buffer("row", self.table[1])

        def forward(self, tokens, scale, part):
            x = self.norm(self.inner(self.embedding(tokens))) + self.row
            return self.head(torch.relu(x) * scale) + part.sum()

        def example_inputs(self):
            scale = torch.rand(16)
            return torch.arange(24) % 32, scale, scale[3:7]

        def loss(self, output):
            return output.square().mean()

        def optimizer(self, parameters):
            return torch.optim.Adam(parameters, lr=0.01)
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    return write_file(tmp_path, "net.py", NET)


def addresses(model: Any) -> list[int]:
    return [tensor.data_ptr() for tensor in model.state() + model.inputs()]


def same(left: dict[str, list[Any]], right: dict[str, list[Any]]) -> bool:
    import torch

    return left.keys() == right.keys() and all(
        torch.equal(x, y) for group in left for x, y in zip(left[group], right[group], strict=True)
    )


@METHODS
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_results_keep_every_bit_while_addresses_change(net: str, method: str, mode: str) -> None:
    service = make_service(net, mode=mode, step=mode == "training")
    runner = service.runner("eager")
    before, _ = runner.results(3)
    seen = [addresses(runner.model)]
    for seed in range(4):
        answer = service.reseat(seed, method)
        assert answer["held_bytes"] == 0
        assert answer["moved_bytes"] > 0
        assert same(before, runner.results(3)[0])
        seen.append(addresses(runner.model))
    for now, then in zip(seen[1:], seen[:-1], strict=True):
        assert not any(x == y for x, y in zip(now, then, strict=True))
        assert all(address % 4 == 0 for address in now)


@METHODS
def test_tied_weights_stay_tied_and_views_stay_views(net: str, method: str) -> None:
    import torch

    service = make_service(net)
    model = service.runner("eager").model
    module = model.module
    for seed in range(3):
        service.reseat(seed, method)
        assert module.head.weight is module.embedding.weight
        assert module.row.data_ptr() == module.table[1].data_ptr()
        assert model.args[2].data_ptr() == model.args[1][3:].data_ptr()
    with torch.no_grad():
        module.table.fill_(7.0)
    assert module.row.tolist() == [7.0] * 16


@METHODS
def test_the_optimisers_state_moves_and_is_still_used(net: str, method: str) -> None:
    import torch

    service = make_service(net, mode="training", step=True)
    runner = service.runner("eager")
    parameter = runner.model.parameters[0]
    service.warm("eager", 0.1)
    moments = runner.model.optimizer.state[parameter]["exp_avg"]
    address, values = moments.data_ptr(), moments.clone()
    bare = make_service(net)
    moved = service.reseat(1, method)["moved_bytes"]
    assert moved > 2 * bare.reseat(1, method)["moved_bytes"]
    now = runner.model.optimizer.state[parameter]["exp_avg"]
    assert now is moments
    assert now.data_ptr() != address
    assert torch.equal(now, values)
    with runner.context():
        runner.caller()()
    assert not torch.equal(now, values)
    assert now.data_ptr() == moments.data_ptr()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.filterwarnings("ignore")
def test_relocation_keeps_compiled_code_correct_without_recompilation(
    net: str, backend: str, mode: str
) -> None:
    import torch
    from torch._dynamo.utils import counters

    service = make_service(net, variant("eager"), variant("compiled", backend), mode=mode)
    runner = service.runner("compiled")
    before, _ = runner.results(3)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs >= 1
    for seed in range(3):
        for method in ("pages", "heap"):
            service.reseat(seed, method)
            assert same(before, runner.results(3)[0])
    eager, _ = service.runner("eager").results(3)
    for x, y in zip(eager["output"], before["output"], strict=True):
        assert torch.allclose(x, y, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == graphs


def test_replaced_buffers_are_freed(tmp_path: Path) -> None:
    code = """
        import torch
        class Counting(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("seen", torch.zeros(1 << 18))
            def forward(self, x):
                self.seen = self.seen + 1
                return x + self.seen[0]
        def make():
            return Counting(), torch.zeros(4)
    """
    service = make_service(write_file(tmp_path, "counting.py", code))
    runner = service.runner("eager")
    moved = set()
    for seed in range(5):
        moved.add(service.reseat(seed, "pages")["moved_bytes"])
        with runner.context():
            runner.caller()()
    assert moved == {(1 << 20) + 16}


def test_reallocated_tensors_are_moved(net: str) -> None:
    import torch

    service = make_service(net)
    module = service.runner("eager").model.module
    service.reseat(1, "pages")
    values = torch.randn(16, 16)
    module.inner.weight.data = values.clone()
    service.reseat(2, "pages")
    assert torch.equal(module.inner.weight, values)
    service.reseat(3, "heap")
    assert torch.equal(module.inner.weight, values)


def test_a_view_made_later_moves_with_its_storage(net: str) -> None:
    service = make_service(net)
    module = service.runner("eager").model.module
    first = service.reseat(1, "pages")["moved_bytes"]
    module.register_buffer("late", module.table[2])
    assert service.reseat(2, "pages")["moved_bytes"] == first
    assert module.late.data_ptr() == module.table[2].data_ptr()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_immovable_bytes_are_reported(tmp_path: Path) -> None:
    code = """
        import torch
        def multiply(a, b, x):
            return torch.sparse.mm(a, x) + torch.mv(b, x[:, 0])[:, None]
        def make():
            dense = torch.eye(64)
            return multiply, (dense.to_sparse(), dense.to_sparse_csr(), torch.ones(64, 8))
    """
    service = make_service(write_file(tmp_path, "sparse.py", code))
    answer = service.reseat(1, "pages")
    coo, csr = 64 * (2 * 8 + 4), 65 * 8 + 64 * (8 + 4)
    assert answer["moved_bytes"] == 64 * 8 * 4
    assert answer["held_bytes"] == coo + csr
    assert service.reseat(2, "pages")["held_bytes"] == coo + csr


def test_off_moves_nothing_and_rewinds(net: str) -> None:
    service = make_service(net, mode="training", step=True)
    runner = service.runner("eager")
    before = addresses(runner.model)
    service.warm("eager", 0.1)
    assert service.reseat(1, "off")["moved_bytes"] == 0
    assert addresses(runner.model) == before
    assert int(runner.model.module.norm.num_batches_tracked) == 0


@METHODS
def test_memory_does_not_grow(tmp_path: Path, method: str) -> None:
    code = """
        import torch
        def make():
            return torch.nn.Linear(512, 512), torch.ones(8, 512)
    """
    service = make_service(write_file(tmp_path, "big.py", code))

    def reseat_often(count: int) -> None:
        for seed in range(count):
            service.reseat(seed, method)

    assert _growth_bytes(lambda: reseat_often(200), lambda: reseat_often(30)) < 8 << 20


def _growth_bytes(work: Callable[[], None], first: Callable[[], None]) -> int:
    """How far resident memory is up after the work, with a first helping not counted."""

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    first()
    before = resident()
    work()
    return resident() - before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_that_holds_its_weights_stays_right(net: str, tmp_path: Path) -> None:
    """With freezing, inductor keeps copies of the weights: moving the originals must not hurt."""
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import config

    reference = str(tmp_path / "reference.pt")
    with config.patch(freezing=True):
        service = make_service(net, variant("eager"), variant("compiled", "inductor"))
        service.reference("eager", reference)
        assert service.judge("compiled", reference)["status"] == "pass"
        graphs = counters["stats"]["unique_graphs"]
        for seed in range(3):
            service.reseat(seed, "pages")
            assert service.judge("compiled", reference)["status"] == "pass"
        assert counters["stats"]["unique_graphs"] == graphs
    torch._dynamo.reset()


@METHODS
def test_hooks_of_gradients_stay(tmp_path: Path, method: str) -> None:
    service = make_service(write_file(tmp_path, "hooked.py", HOOKED), mode="training")
    runner = service.runner("eager")
    before, _ = runner.results(3)
    assert before["gradient"][0].tolist() == [[1.5] * 16] * 4  # half of the number of rows
    for seed in range(2):
        assert service.reseat(seed, method)["moved_bytes"] > 0
        assert same(before, runner.results(3)[0])
