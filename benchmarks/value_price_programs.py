"""Programs with planted waste, each with its fixed version, for `value_prices.py`.

    python benchmarks/value_price_programs.py NAME [--fixed]

A program is a generator: it yields after every iteration. `waste` marks the lines of planted waste.
Programs with an optimizer have steps; for the others the whole program counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Program = Callable[[bool], Iterator[None]]
PROGRAMS: Final[dict[str, Program]] = {}
TWO_THREADS: Final = frozenset({"chain_two_threads", "matmul_two_threads", "sort_in_two_threads"})


def program(function: Program) -> Program:
    """Register a program under its name."""
    PROGRAMS[function.__name__] = function
    return function


def training(net: nn.Module, lr: float = 1e-4) -> torch.optim.Optimizer:
    """Return an optimizer for a net."""
    return torch.optim.SGD(net.parameters(), lr=lr)


def chain(x: Tensor) -> Tensor:
    """Five operators and a reduction."""
    y = x.t().contiguous() @ x  # waste
    y = torch.tanh(y)  # waste
    y = y * 0.5 + y.exp()  # waste
    return y.softmax(-1).sum()  # waste


def chained(fixed: bool, times: int, size: int) -> Iterator[None]:
    x = torch.randn(size, size)
    for _ in range(times):
        x = x + 0.01
        first = chain(x)
        second = first if fixed else chain(x)
        (first + second).item()
        yield


@program
def duplicate_chain(fixed: bool) -> Iterator[None]:
    return chained(fixed, 40, 192)


@program
def chain_two_threads(fixed: bool) -> Iterator[None]:
    return chained(fixed, 12, 320)


@program
def duplicate_reduction(fixed: bool) -> Iterator[None]:
    x = torch.randn(1 << 19)
    for _ in range(20):
        x = x + 0.01
        norm = x.pow(2).sum()
        again = norm if fixed else x.pow(2).sum()  # waste
        (norm + again).item()
        yield


@program
def duplicate_in_training(fixed: bool) -> Iterator[None]:
    net = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
    optimizer, data = training(net), torch.randn(256, 256)
    for _ in range(24):
        hidden = net(data)
        one = torch.softmax(hidden, -1)
        two = one if fixed else torch.softmax(hidden, -1)  # waste
        loss = (one * data).sum() + (two * 0.5).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@program
def duplicate_module_in_training(fixed: bool) -> Iterator[None]:
    net = nn.ModuleList([nn.Linear(256, 256), nn.LayerNorm(256), nn.Linear(256, 16)])
    optimizer, data = training(net), torch.randn(512, 256)

    def features() -> Tensor:
        return net[1](F.gelu(net[0](data)))  # waste

    for _ in range(24):
        one = features()
        two = one if fixed else features()
        loss = net[2](one).pow(2).mean() + net[2](two).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def causal(size: int) -> Tensor:
    places = torch.arange(size)  # waste
    seen = places[:, None] >= places[None, :]  # waste
    return torch.where(seen, 0.0, float("-inf"))  # waste


@program
def mask_rebuilt_each_step(fixed: bool) -> Iterator[None]:
    net = nn.Linear(64, 3 * 64)
    optimizer, data = training(net), torch.randn(2, 384, 64)
    kept = causal(384)
    for _ in range(24):
        q, k, v = net(data).chunk(3, -1)
        scores = q @ k.transpose(1, 2) + (kept if fixed else causal(384))
        loss = (scores.softmax(-1) @ v).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@program
def mask_rebuilt_in_a_loop(fixed: bool) -> Iterator[None]:
    x, kept = torch.randn(512, 512), causal(512)
    for _ in range(24):
        x = x * 0.99 + 0.01
        (x + (kept if fixed else causal(512))).softmax(-1).sum().item()
        yield


@program
def masked_fill_all_false(fixed: bool) -> Iterator[None]:
    x = torch.randn(512, 512)
    for _ in range(24):
        x = x * 0.999
        y = x
        if not fixed:
            mask = x > 1e6  # waste
            y = x.masked_fill(mask, 0.0)  # waste
        y.tanh().sum().item()
        yield


@program
def masked_fill_all_true(fixed: bool) -> Iterator[None]:
    x, mask = torch.randn(512, 512), torch.ones(512, 512, dtype=torch.bool)
    zeros = torch.zeros(512, 512)
    for _ in range(24):
        x = x * 0.999
        y = zeros if fixed else x.exp().masked_fill(mask, 0.0)  # waste
        (x.tanh() + y).sum().item()
        yield


@program
def where_all_true(fixed: bool) -> Iterator[None]:
    x = torch.randn(512, 512)
    for _ in range(24):
        x = x * 0.999
        y = x if fixed else torch.where(torch.isfinite(x), x, 0.0)  # waste
        y.sigmoid().sum().item()
        yield


@program
def nan_to_num_in_training(fixed: bool) -> Iterator[None]:
    net = nn.Linear(256, 256)
    optimizer, data = training(net), torch.randn(1024, 256)
    for _ in range(24):
        hidden = net(data)
        if not fixed:
            hidden = hidden.nan_to_num()  # waste
        loss = hidden.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@program
def index_by_all(fixed: bool) -> Iterator[None]:
    x, index = torch.randn(4096, 256), torch.arange(4096)
    for _ in range(20):
        x = x * 0.999
        y = x if fixed else x[index]  # waste
        y.tanh().sum().item()
        yield


@program
def large_copy(fixed: bool) -> Iterator[None]:
    x = torch.randn(4 << 20)
    for _ in range(10):
        x = x + 0.01
        y = x if fixed else x.clone()  # waste
        y.sum().item()
        del y
        yield


@program
def copy_behind_a_view(fixed: bool) -> Iterator[None]:
    x = torch.randn(256, 1024)
    for _ in range(20):
        x = x * 0.999
        flat = x.view(-1) if fixed else x.view(-1).clone()  # waste
        flat.view(512, 512).exp().sum().item()
        yield


@program
def integers_too_wide(fixed: bool) -> Iterator[None]:
    labels = torch.randint(0, 9, (512, 512))
    narrow = labels.to(torch.uint8)
    for number in range(30):
        numbers = narrow + number if fixed else labels + number  # waste
        ((numbers * 2).max() + (numbers * 3).max() + numbers.max()).item()
        yield


@program
def mask_as_float(fixed: bool) -> Iterator[None]:
    x = torch.randn(512, 512)
    for _ in range(30):
        x = x + 0.02
        if fixed:
            y = x.clamp_min(0.0) + 1e-7 * (x > 0).sum()
        else:
            keep = (x > 0).float()  # waste
            y = x * keep + 1e-7 * keep.sum()
        y.sigmoid().sum().item()
        yield


@program
def dead_initialisation(fixed: bool) -> Iterator[None]:
    x = torch.randn(1024, 512)
    for _ in range(20):
        x = x * 0.999
        out = torch.empty(1024, 512) if fixed else torch.zeros(1024, 512)  # waste
        torch.tanh(x, out=out)
        out.sum().item()
        yield


@program
def zeroed_again(fixed: bool) -> Iterator[None]:
    x, total = torch.randn(1024, 512), torch.zeros(1024, 512)
    for _ in range(20):
        total.zero_()
        if not fixed:
            total.zero_()  # waste
        total.add_(x, alpha=0.5)
        total.sum().item()
        yield


@program
def copied_again(fixed: bool) -> Iterator[None]:
    x, buffer = torch.randn(1024, 512), torch.randn(1024, 512)
    buffer.copy_(x)
    for _ in range(20):
        if not fixed:
            buffer.copy_(x)  # waste
        (buffer * 2).tanh().sum().item()
        yield


@program
def small_operator_in_a_hot_loop(fixed: bool) -> Iterator[None]:
    x = torch.randn(4096)
    for _ in range(2500):
        y = x if fixed else x * 1.0  # waste
        x = y + 0.001
    x.sum().item()
    yield


@program
def small_modules_in_a_hot_loop(fixed: bool) -> Iterator[None]:
    norm, x = nn.LayerNorm(64), torch.randn(64, 64)
    with torch.no_grad():
        for _ in range(800):
            x = x + 0.001
            one = norm(x)
            two = one if fixed else norm(x)  # waste
            x = x + 1e-6 * (one - two)
    x.sum().item()
    yield


@program
def gradients_set_to_zero(fixed: bool) -> Iterator[None]:
    net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
    optimizer, data = training(net), torch.randn(16, 512)
    for _ in range(24):
        loss = net(data).pow(2).mean()
        optimizer.zero_grad(set_to_none=fixed)  # waste
        loss.backward()  # waste
        optimizer.step()
        yield


@program
def optimizer_computes_twice(fixed: bool) -> Iterator[None]:
    net = nn.Linear(1024, 1024)
    data, mean = torch.randn(32, 1024), torch.zeros(1024, 1024)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for _ in range(24):
        optimizer.zero_grad()
        net(data).pow(2).mean().backward()
        with torch.no_grad():
            gradient = net.weight.grad.detach()
            update = gradient / (gradient.pow(2).sqrt() + 1e-8)
            again = update if fixed else gradient / (gradient.pow(2).sqrt() + 1e-8)  # waste
            mean.lerp_(again, 0.1)
            net.weight -= 1e-5 * update
        optimizer.step()
        yield


@program
def matmul_two_threads(fixed: bool) -> Iterator[None]:
    x, w = torch.randn(512, 512), torch.randn(512, 512)
    for _ in range(10):
        x = x * 0.999
        one = x @ w
        two = one if fixed else x @ w  # waste
        (one + two).relu().sum().item()
        yield


@program
def sort_in_two_threads(fixed: bool) -> Iterator[None]:
    x, w = torch.randn(256, 2048), torch.randn(2048, 256)
    for _ in range(10):
        x = x * 0.999 + 0.001
        one = x.sort(-1).values
        two = one if fixed else x.sort(-1).values  # waste
        ((one + two) @ w).sum().item()
        yield


@program
def denormal_numbers(fixed: bool) -> Iterator[None]:
    x = torch.full((512, 512), 1e-39) * torch.rand(512, 512)
    y = torch.randn(512, 512)
    for _ in range(20):
        y = y * 0.999
        one = x.sqrt()
        two = one if fixed else x.sqrt()  # waste
        (y.tanh() + one + two).sum().item()
        yield


@program
def frozen_features(fixed: bool) -> Iterator[None]:
    frozen, head = nn.Linear(256, 256), nn.Linear(256, 64)
    frozen.requires_grad_(False)
    optimizer, data = training(head), torch.randn(256, 256)

    def features() -> Tensor:
        return F.gelu(frozen(data))  # waste

    kept = features()
    for _ in range(24):
        loss = head(kept if fixed else features()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def run_named(programs: dict[str, Program], two_threads: frozenset[str]) -> None:
    """Run the program that the command line names to its end."""
    name, fixed = sys.argv[1], "--fixed" in sys.argv[2:]
    torch.set_num_threads(2 if name in two_threads else 1)
    torch.manual_seed(0)
    for _ in programs[name](fixed):
        pass


if __name__ == "__main__":
    run_named(PROGRAMS, TWO_THREADS)
