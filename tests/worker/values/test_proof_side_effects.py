"""A program computes the same bits with profiling and proofs as without."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from tests.worker.values.proof_profiles import watched  # noqa: E402
from torchyard.worker.values.exchange import Options  # noqa: E402
from torchyard.worker.values.profiling_session import ProfilingSession  # noqa: E402
from torchyard.worker.values.proofs.trial_inputs import same_bits  # noqa: E402

pytestmark = pytest.mark.torch


class Net(nn.Module):  # type: ignore[misc]
    """Everything that keeps state: random numbers, running statistics, an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16, padding_idx=0)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, tokens: Any) -> Any:
        hidden = self.norm(self.conv(self.table(tokens).transpose(1, 2)))
        return self.head(F.dropout(F.relu(hidden), 0.3, self.training).transpose(1, 2))


class Training:
    """A few steps with waste of every kind in them."""

    def __init__(self) -> None:
        torch.manual_seed(11)
        random.seed(11)
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.losses: list[float] = []
        self.drawn: list[float] = []

    def step(self) -> None:
        tokens = torch.randint(0, 50, (4, 12))
        target = torch.randint(0, 10, (4, 12))
        wish = torch.randn(4, 12, 10)
        self.optimizer.zero_grad(set_to_none=False)
        output = self.net(tokens)
        buffer = torch.zeros(4, 12, 10)
        buffer.copy_(wish)
        loss = F.cross_entropy(output.transpose(1, 2), target) + F.mse_loss(output, buffer)
        loss = loss + F.huber_loss(output, buffer.clamp(min=-1e9))
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.drawn.append(random.random())

    def state(self) -> list[Any]:
        kept = [*self.net.state_dict().values()]
        for values in self.optimizer.state.values():
            kept += [value for value in values.values() if isinstance(value, torch.Tensor)]
        kept += [p.grad for p in self.net.parameters()]
        return [*kept, torch.get_rng_state(), torch.tensor(self.losses), torch.tensor(self.drawn)]


@pytest.mark.parametrize("deep", [False, True])
def test_training_gives_the_same_bits(deep: bool) -> None:
    plain = Training()
    for _ in range(4):
        plain.step()
    expected = plain.state()
    training = Training()
    session = watched(training.step, times=4, deep=deep)
    assert session.proofs is not None
    assert session.proofs.tried > 0
    found = training.state()
    assert len(found) == len(expected)
    different = [
        n for n, pair in enumerate(zip(expected, found, strict=True)) if not same_bits(*pair)
    ]
    assert different == []


def test_gradients_flow_through_what_was_tried() -> None:
    own = torch.randn(30, 30, requires_grad=True)
    target = torch.randn(30, 30)
    F.mse_loss(own * 2, target).backward()
    expected = own.grad.clone()
    own.grad = None
    watched(lambda: F.mse_loss(own * 2, target).backward())
    assert same_bits(own.grad, expected)
    assert own._version == 0


def test_versions_of_tensors_do_not_move() -> None:
    buffer, source = torch.zeros(64, 64), torch.randn(64, 64)
    versions: list[int] = []

    def program() -> None:
        buffer.copy_(source)
        versions.append(buffer._version)

    watched(program, times=3)
    assert versions == [1, 2, 3]
    assert source._version == 0


def test_memory_of_trials_is_given_back() -> None:
    own = torch.randn(256, 256, requires_grad=True)
    target = torch.randn(256, 256)
    session = watched(lambda: F.mse_loss(own, target).backward(), times=2)
    gc.collect()
    held = [
        thing
        for thing in gc.get_objects()
        if type(thing) is torch.Tensor and thing.numel() == own.numel()
    ]
    assert session.proofs is not None
    assert session.proofs.tried
    assert len(held) == 3, "the tensor, the target and the gradient"


def test_a_program_that_raises_leaves_nothing_for_the_next_operator() -> None:
    session = ProfilingSession(Options(deep=True, least_bytes=256, graph=False))
    own = torch.randn(50, 50, requires_grad=True)
    session.start()
    try:
        with pytest.raises(RuntimeError):
            torch.ops.aten.mse_loss_backward(torch.ones(3), own.detach(), torch.randn(50, 50), 7)
        F.mse_loss(own, torch.randn(50, 50)).backward()
        (own.detach() + 1).sum()
    finally:
        session.stop()
    for finding in session.findings.all():
        assert finding.count == 1


def test_the_programs_own_profiler_sees_no_trial() -> None:
    own = torch.randn(50, 50, requires_grad=True)
    target = torch.randn(50, 50)

    def program() -> int:
        with torch.autograd.profiler_legacy.profile() as profile:
            F.mse_loss(own, target).backward()
        return sum(1 for event in profile.function_events if "mse_loss_backward" in event.name)

    counts: list[int] = []
    watched(lambda: counts.append(program()), prove=False)
    session = watched(lambda: counts.append(program()), prove=True)
    assert session.proofs is not None
    assert session.proofs.tried == 0
    assert any("profiler" in why for why in session.proofs.untried)
    assert counts[0] == counts[1]
