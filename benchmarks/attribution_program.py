# mypy: allow-subclassing-any, allow-untyped-decorators, allow-untyped-defs
"""A small transformer with extra work planted in one module; see `attribution_truth.py`.

`PLANTED` holds module, kind and amount of the extra work, `PLANTED_SIZE` the size of the model. The
backend function `planted` returns a changed copy; with `PLANTED_NET`, the model itself is changed.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time

import torch
from torch import Tensor, nn

try:
    import triton
    from triton import language as tl
except ImportError:
    triton = None

SIZES = {"small": (256, 4, 128), "large": (1024, 16, 512)}
"""Width, batch size and length."""
UNIT_S = 2e-4
"""Busy-waiting time of each unit of work."""


class Attention(nn.Module):
    """Self-attention with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of the same shape."""
        query, key, value = self.inner(x).chunk(3, dim=-1)
        scores = torch.softmax(query @ key.transpose(-1, -2) / 16.0, dim=-1)
        return self.outer(scores @ value)


class Block(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of the same shape."""
        x = x + self.attention(self.norm(x))
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    """Two blocks and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.width, self.batch, self.length = SIZES[os.environ.get("PLANTED_SIZE", "small")]
        self.blocks = nn.ModuleList([Block(self.width) for _ in range(2)])
        self.head = nn.Linear(self.width, 64)
        if os.environ.get("PLANTED_NET"):
            plant(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return 64 numbers for each position."""
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def example_inputs(self) -> tuple[Tensor]:
        """Return the inputs of an iteration."""
        return (torch.randn(self.batch, self.length, self.width),)


def spin(duration_s: float) -> None:
    """Busy-wait on the host."""
    end = time.perf_counter() + duration_s
    while time.perf_counter() < end:
        pass


if triton is not None:

    @triton.jit
    def spin_kernel(duration_ns):  # noqa: ANN001, ANN201
        start = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
        now = start
        while now - start < duration_ns:
            now = tl.inline_asm_elementwise(
                "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
            )


def spin_on_gpu(_x: Tensor, duration_s: float) -> None:
    """Busy-wait on the GPU."""
    spin_kernel[(1,)](int(1e9 * duration_s))


if not hasattr(torch.ops.planted, "spin"):  # a worker may load this file twice
    LIBRARY = torch.library.Library("planted", "FRAGMENT")
    LIBRARY.define("spin(Tensor(a!) x, float duration_s) -> ()")
    LIBRARY.impl("spin", lambda _x, duration_s: spin(duration_s), "CPU")
    LIBRARY.impl("spin", spin_on_gpu, "CUDA")
    LIBRARY.impl("spin", lambda _x, _duration_s: None, "Meta")
    torch.ops.planted.kept = LIBRARY


@torch.compiler.disable
def _uncompiled(module: nn.Module, x: Tensor, duration_s: float) -> Tensor:
    spin(duration_s)
    return module(x)


class Planted(nn.Module):
    """A module with extra work that does not change its result."""

    def __init__(self, inner: nn.Module, kind: str, amount: int) -> None:
        super().__init__()
        self.inner, self.kind, self.amount = inner, kind, amount

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of the module."""
        if self.kind == "slow":  # the same in double precision
            weights = {name: one.double() for name, one in self.inner.named_parameters()}
            return torch.func.functional_call(self.inner, weights, (x.double(),)).float()
        if self.kind in {"fallback", "sleep"}:
            duration_s = self.amount * UNIT_S if self.kind == "sleep" else 0.0
            return _uncompiled(self.inner, x, duration_s)
        result: Tensor = self.inner(x)
        if self.kind == "work":
            for _ in range(self.amount):
                result = result + torch.exp(result) * 1e-9
        elif self.kind == "copy":
            for _ in range(self.amount):
                result = result.transpose(0, 1).contiguous().transpose(0, 1).contiguous()
        elif self.kind == "detour":
            for _ in range(self.amount):
                result = result.double().float()
        elif self.kind == "matmul":
            square = result.new_ones(result.shape[-1], result.shape[-1])
            for _ in range(self.amount):
                result = result + 1e-9 * (result @ square)
        elif self.kind == "loop":
            rows = [result[index] * 1.0 for index in range(result.shape[0])] * self.amount
            result = torch.stack(rows[: result.shape[0]])
        elif self.kind == "again":
            for _ in range(self.amount):
                self.inner(x)
        elif self.kind == "launches":
            small = result.flatten()[:8]
            for _ in range(10 * self.amount):
                small = small * 1.0 + 0.0
        elif self.kind == "item":
            for _ in range(self.amount):
                result.flatten()[0].item()
        elif self.kind == "break":
            for _ in range(self.amount):
                torch._dynamo.graph_break()  # noqa: SLF001
                result = result * 1.0
        elif self.kind == "spin":
            torch.ops.planted.spin(result, self.amount * UNIT_S)
        return result


def spin_cost_ns(amount: int) -> float:
    """Return the median time of a planted `spin` in eager iterations, with the call of the operator."""
    times_ns = []

    class Timed(Planted):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.inner(x)
            start_ns = time.perf_counter_ns()
            torch.ops.planted.spin(result, self.amount * UNIT_S)
            times_ns.append(time.perf_counter_ns() - start_ns)
            return result

    net = Net().eval()
    net.head = Timed(net.head, "spin", amount)
    inputs = net.example_inputs()
    with torch.no_grad():
        for _ in range(60):
            net(*inputs)
    return statistics.median(times_ns[20:])


def plant(module: nn.Module) -> None:
    """Replace one submodule by one with extra work; nothing without `PLANTED`."""
    words = os.environ.get("PLANTED", "").split()
    if words:
        place, kind, amount = words
        parent, _, name = place.rpartition(".")
        owner = module.get_submodule(parent)
        setattr(owner, name, Planted(getattr(owner, name), kind, int(amount)))


def planted(module: nn.Module) -> nn.Module:
    """Return a changed copy: a backend function."""
    changed = copy.deepcopy(module)
    plant(changed)
    return changed


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(spin_cost_ns(int(sys.argv[1])))
