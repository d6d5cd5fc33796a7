"""Programs with equal steps, profiled with or without the follower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.profiling_session import ProfilingSession

Step = Callable[[int], None]
Maker = Callable[[], Step]


def transformer() -> Step:
    """In place and not, views, a fused kernel, random numbers, gradients that are zeroed."""
    torch.manual_seed(0)
    first = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    last = nn.Sequential(
        nn.Linear(32, 16), nn.LayerNorm(16), nn.ReLU(inplace=True), nn.Dropout(0.2)
    )
    parameters = [*first.parameters(), *last.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    words, wanted = torch.randn(8, 8, 32), torch.randint(0, 16, (64,))

    def step(number: int) -> None:
        optimizer.zero_grad(set_to_none=False)
        hidden = first(words)
        if number in (8, 12):
            hidden = hidden + torch.zeros_like(hidden).cumsum(0)
        nn.functional.cross_entropy(last(hidden).reshape(-1, 16), wanted).backward()
        optimizer.step()

    return step


def convolutions() -> Step:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()
    )
    head = nn.Linear(8 * 7 * 7, 4)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)
    pictures = torch.randn(4, 3, 16, 16)

    def step(_number: int) -> None:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(head(model(pictures)), torch.zeros(4, 4))
        loss.backward()
        optimizer.step()

    return step


def autocast() -> Step:
    """Casts are called from within the operators that autocast wraps."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())
    rows = torch.randn(16, 32)

    def step(_number: int) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(rows)
            product = torch.bmm(rows.unsqueeze(0), rows.t().unsqueeze(0)) * out.sum()
            product.float().pow(2).mean().backward()
        optimizer.step()

    return step


def own_function() -> Step:
    """An autograd function in Python, a part without gradients, and one of many results."""

    class Twice(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_context: Any, given: Any) -> Any:
            return given * 2

        @staticmethod
        def backward(_context: Any, *grads: Any) -> Any:
            return grads[0] * 2

    torch.manual_seed(3)
    weight = torch.randn(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.01)

    def step(_number: int) -> None:
        optimizer.zero_grad()
        parts = Twice.apply(weight).split(16)
        with torch.no_grad():
            scale = torch.stack([part.sum() for part in parts])
        best, _ = torch.cat(parts).max(1)
        (best * scale.mean()).sum().backward()
        optimizer.step()

    return step


def checkpointed() -> Step:
    """What is computed again in the backward pass ends with an exception out of an operator."""
    torch.manual_seed(4)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(2))
    optimizer = torch.optim.SGD(blocks.parameters(), 0.1)
    rows = torch.randn(16, 32)

    def step(_number: int) -> None:
        hidden = rows
        for block in blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        optimizer.zero_grad()
        hidden.pow(2).mean().backward()
        optimizer.step()

    return step


def profile(make: Maker, *, follow: bool, steps: int = 14, **options: Any) -> ProfilingSession:
    session = ProfilingSession(Options(prove=False, least_bytes=256, **options), follow=follow)
    if session.library is not None:
        assert session.library.wait()
    step = make()
    session.start()
    try:
        for number in range(steps):
            step(number)
    finally:
        session.stop()
    return session


def found(session: ProfilingSession) -> list[tuple[Any, ...]]:
    return [
        (one.pattern, one.operator, one.place.file, one.place.line, one.place.module, one.count)
        for one in session.findings.all()
    ]


def followed_steps(session: ProfilingSession) -> list[bool]:
    """Remember of each step whether the follower saw it."""
    seen: list[bool] = []
    calls = session.mode._calls
    end = calls.end_step

    def noted(surveyed: bool) -> bool:
        seen.append(calls.following)
        return end(surveyed)

    calls.end_step = noted  # type: ignore[method-assign]
    return seen
