"""Clean programs: every finding in them is false."""

# ruff: noqa: T201, B023
# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import threading

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.values.compiled_corpus.planted import SIZE, _data
from tests.values.corpus.program import program_of


def perceptron_training() -> None:
    """Forward and backward graphs with dropout."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Dropout(0.5), nn.Linear(SIZE, SIZE))
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        optimizer.zero_grad()
        functional.mse_loss(compiled(_data()), _data()).backward()
        optimizer.step()


def reused_buffers() -> None:
    """A chain of matrix products whose buffers Inductor reuses."""

    @torch.compile
    def f(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.softmax(x @ w, -1) + torch.sin(x)
        return x

    w = _data()
    for _ in range(3):
        print(float(f(_data(), w).sum()))


def in_place_epilogue() -> None:
    """Epilogues in the memory of matrix products."""

    @torch.compile
    def f(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = torch.addmm(b, x, w).relu_()
        return (y @ w).mul_(0.5).add_(x)

    w, b = _data(), _data(SIZE)
    for _ in range(3):
        print(float(f(_data(), w, b).sum()))


def attention() -> None:
    """Causal attention with a mask."""

    @torch.compile
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / 8
        mask = torch.ones(SIZE, SIZE, dtype=torch.bool).tril()
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v

    for _ in range(3):
        print(float(f(_data(2, SIZE, 64), _data(2, SIZE, 64), _data(2, SIZE, 64)).sum()))


def batch_norm_training() -> None:
    """Mutated buffers, convolutions and sparse activations."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        compiled(_data(4, 3, 32, 32)).square().mean().backward()
        optimizer.step()


def key_value_cache() -> None:
    """A cache that is written one position at a time."""

    @torch.compile
    def f(cache: Tensor, x: Tensor, position: Tensor) -> Tensor:
        cache.index_copy_(0, position, x)
        return cache @ x.t()

    cache = torch.zeros(SIZE, SIZE)
    for step in range(4):
        print(float(f(cache, _data(1, SIZE), torch.tensor([step])).sum()))


def graph_breaks() -> None:
    """Several graphs with a branch between them."""

    @torch.compile
    def f(x: Tensor) -> Tensor:
        y = torch.sin(x) * 2
        if float(y.sum()) > 0:
            y = y + 1
        return torch.cos(y)

    for _ in range(4):
        print(float(f(_data()).sum()))


def dynamic_shapes() -> None:
    """Different lengths, which recompile once."""

    @torch.compile
    def f(x: Tensor) -> Tensor:
        return torch.softmax(x, -1) @ x.t()

    for length in (100, 120, 140, 160):
        print(float(f(_data(length, SIZE)).sum()))


def running_total() -> None:
    """An accumulator that several graphs add to."""

    @torch.compile
    def f(total: Tensor, x: Tensor) -> None:
        total.add_(x.exp())

    total = torch.zeros(SIZE, SIZE)
    for _ in range(4):
        f(total, _data())
    print(float(total.sum()))


def logged_every_second_step() -> None:
    """A buffer that only some steps read."""

    @torch.compile
    def f(last: Tensor, x: Tensor) -> None:
        last.copy_(x.sin())

    last = _data()
    for step in range(8):
        f(last, _data())
        if step % 2:
            print(float(last.sum()))


def half_of_a_buffer() -> None:
    """Two functions that write one half of a buffer each, and scattered rows."""

    @torch.compile
    def first(out: Tensor, x: Tensor) -> None:
        out[: SIZE // 2] = x[: SIZE // 2].sin()

    @torch.compile
    def rows(out: Tensor, index: Tensor, x: Tensor) -> None:
        out[index] = x[: len(index)].cos()

    out = torch.zeros(SIZE, SIZE)
    for _ in range(3):
        first(out, _data())
        rows(out, torch.randperm(SIZE)[:20], _data())
        print(float(out.sum()))
        out.zero_()


def compiled_optimizer() -> None:
    """A compiled optimizer step, with several tensors in one kernel."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, SIZE))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    step = torch.compile(optimizer.step)
    for _ in range(4):
        optimizer.zero_grad()
        model(_data()).square().mean().backward()
        step()


def summed_loss() -> None:
    """Gradients of a sum and a mean are constants by definition."""

    @torch.compile
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return y.sum() + y.relu().mean() + (x.sin() @ w).mean()

    w = _data().requires_grad_()
    for _ in range(3):
        w.grad = None
        f(_data(), w).backward()
        print(float(w.grad.sum()) if w.grad is not None else 0)


def classifier() -> None:
    """Embedding, normalization and cross entropy."""
    model = nn.Sequential(nn.Embedding(500, 64), nn.LayerNorm(64), nn.Linear(64, 500))
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        tokens = torch.randint(0, 500, (2000,))
        functional.cross_entropy(compiled(tokens), tokens.roll(1)).backward()
        optimizer.step()


def hidden_state() -> None:
    """A compiled function returns zeros, which are written later."""

    @torch.compile
    def start(x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @torch.compile
    def cell(hidden: Tensor, x: Tensor) -> None:
        hidden.mul_(0.5).add_(x.tanh())

    for _ in range(3):
        hidden = start(_data())
        for _ in range(2):
            cell(hidden, _data())
        print(float(hidden.sum()))


def in_another_thread() -> None:
    """A buffer that another thread reads in compiled code."""

    @torch.compile
    def write(out: Tensor, x: Tensor) -> None:
        out.copy_(x.sin())

    @torch.compile
    def read(out: Tensor) -> Tensor:
        return out.exp().sum()

    out = _data()
    read(out)
    for _ in range(3):
        write(out, _data())
        sums: list[float] = []
        thread = threading.Thread(target=lambda: sums.append(float(read(out))))
        thread.start()
        thread.join()
        print(sums)


def error_in_the_middle() -> None:
    """An exception inside of a compiled call."""

    @torch.compile
    def f(x: Tensor, index: Tensor) -> Tensor:
        return (x.sin() @ x)[index].cos()

    for last in (3, SIZE + 5, 4):
        try:
            print(float(f(_data(), torch.tensor([0, last])).sum()))
        except (IndexError, RuntimeError) as error:
            print(type(error).__name__)


def kept_until_the_end() -> None:
    """A buffer whose last values are read after the loop."""

    @torch.compile
    def keep(last: Tensor, x: Tensor) -> None:
        last.copy_(x.sin())

    @torch.compile
    def scale(last: Tensor, x: Tensor) -> None:
        last.copy_(x.cos())

    last, other = _data(), _data()
    for _ in range(4):
        keep(last, _data())
        scale(other, _data())
    print(float(last.sum()), float(other.sum()))


def rows_in_any_order() -> None:
    """Indices that cover a buffer in the first calls only."""

    @torch.compile
    def fill(out: Tensor, x: Tensor) -> None:
        out.copy_(x.sin())

    @torch.compile
    def rows(out: Tensor, index: Tensor, x: Tensor) -> None:
        out[index] = x.cos()

    out = _data()
    for step in range(6):
        fill(out, _data())
        index = torch.randperm(SIZE) if step < 4 else torch.randint(0, SIZE, (SIZE,))
        rows(out, index, _data())
        print(float(out.sum()))


def read_by_a_cpp_wrapper() -> None:
    """A reader whose kernels are called without Python."""

    @torch.compile
    def write(out: Tensor, x: Tensor) -> None:
        out.copy_(x.sin())

    @torch.compile(options={"cpp_wrapper": True})
    def read(out: Tensor) -> Tensor:
        return out.exp()

    out = _data()
    for _ in range(3):
        write(out, _data())
        print(float(read(out).sum()))


def read_by_numpy() -> None:
    """A reader that bypasses the dispatcher."""

    @torch.compile
    def write(out: Tensor, x: Tensor) -> None:
        out.copy_(x.sin())

    out = _data()
    shared = out.numpy()
    for _ in range(3):
        write(out, _data())
        print(float(shared.sum()))


def read_through_a_view() -> None:
    """A reader of one row."""

    @torch.compile
    def write(out: Tensor, x: Tensor) -> None:
        out.copy_(x.sin())

    out = _data()
    row = out.view(-1)[:4]
    for _ in range(3):
        write(out, _data())
        print(float(row.sum()))


def compiled_momentum() -> None:
    """The first step copies gradients to the state of the optimizer."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = torch.compile(optimizer.step)
    for _ in range(4):
        optimizer.zero_grad()
        model(_data()).square().mean().backward()
        step()


def autotuned_product() -> None:
    """Templates with parameters of other names."""

    @torch.compile(mode="max-autotune")
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu() + 1

    w = _data()
    with torch.no_grad():
        for _ in range(3):
            print(float(f(_data(), w).sum()))


CLEAN = tuple(
    program_of(function)
    for function in (
        perceptron_training,
        reused_buffers,
        in_place_epilogue,
        attention,
        batch_norm_training,
        key_value_cache,
        graph_breaks,
        dynamic_shapes,
        running_total,
        logged_every_second_step,
        half_of_a_buffer,
        compiled_optimizer,
        summed_loss,
        classifier,
        hidden_state,
        in_another_thread,
        error_in_the_middle,
        kept_until_the_end,
        rows_in_any_order,
        read_by_a_cpp_wrapper,
        read_by_numpy,
        read_through_a_view,
        compiled_momentum,
        autotuned_product,
    )
)
