"""Further pairs of programs, written after the checks had been changed for those of `program_pairs`."""

# ruff: noqa: PLW0108 - candidates are wrappers on purpose
# mypy: disable-error-code="misc"

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.nn import functional

POOL = ThreadPoolExecutor(1)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.inner(x))

    def example_inputs(self) -> Any:
        return (torch.randn(32, 64),)

    def loss(self, output: Any) -> Any:
        return output.float().square().mean()


def slots_of_one_buffer(module: Any) -> Any:
    """Writes its results to three slots in turn."""
    slots, calls = torch.empty(3, 32, 64), [0]

    def call(x: Any) -> Any:
        if x.shape[0] != 32:
            return module(x)
        calls[0] += 1
        return slots[calls[0] % 3].copy_(module(x))

    return call


def wrong_in_the_second_call(module: Any) -> Any:
    calls = [0]

    def call(x: Any) -> Any:
        calls[0] += 1
        return module(x) + (0.1 if calls[0] == 2 else 0.0)

    return call


def half_in_another_thread(module: Any) -> Any:
    """Returns before the other thread has written its half."""

    def call(x: Any) -> Any:
        out = torch.zeros(x.shape[0], 64)
        half = x.shape[0] // 2
        out[:half] = module(x[:half])
        part = x[half:].clone()

        def rest() -> Any:
            with torch.no_grad():
                value = module(part)
                torch.randn(200, 200, generator=torch.Generator().manual_seed(1)).matrix_exp()
                out[half:] = value

        POOL.submit(rest)
        return out

    return call


def half_in_another_thread_awaited(module: Any) -> Any:
    def call(x: Any) -> Any:
        half = x.shape[0] // 2

        def rest() -> Any:
            with torch.no_grad():
                return module(x[half:])

        later = POOL.submit(rest)
        return torch.cat([module(x[:half]), later.result()])

    return call


def packs_weights_at_first_call(module: Any) -> Any:
    packed: dict[str, Any] = {}

    def call(x: Any) -> Any:
        weight = module.inner.weight
        if packed.get("version") != weight._version:
            packed["version"], packed["weight"] = weight._version, weight.t().contiguous()
        return torch.tanh(torch.addmm(module.inner.bias, x, packed["weight"]))

    return call


def split_reduction(module: Any) -> Any:
    def call(x: Any) -> Any:
        w = module.inner.weight
        return torch.tanh(
            x[:, :20] @ w[:, :20].t() + (x[:, 20:] @ w[:, 20:].t() + module.inner.bias)
        )

    return call


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        self.mean.lerp_(y.detach().mean(0), 0.1)
        return {"value": y, "mean": self.mean.clone()}

    def example_inputs(self) -> Any:
        return (torch.randn(32, 64),)


def returns_the_buffer(module: Any) -> Any:
    def call(x: Any) -> Any:
        y = module.inner(x)
        module.mean.lerp_(y.detach().mean(0), 0.1)
        return {"value": y, "mean": module.mean}

    return call


def other_order_of_keys(module: Any) -> Any:
    def call(x: Any) -> Any:
        out = module(x)
        return {"mean": out["mean"], "value": out["value"]}

    return call


def argsort_with_ties() -> Any:
    return (lambda x: x.argsort(-1)), torch.randint(0, 6, (40, 60)).float()


def argsort_stable(module: Any) -> Any:
    return lambda x: x.argsort(dim=-1, stable=True)


def argsort_of_other_rows(module: Any) -> Any:
    return lambda x: x.roll(1, 0).argsort(-1)


def argsort_wrong_in_a_quarter(module: Any) -> Any:
    def call(x: Any) -> Any:
        order = module(x)
        rows = x.shape[0] // 4
        order[:rows] = order[:rows].flip(-1)
        return order

    return call


class Normed(nn.Module):
    """Statistics in float32, whatever the precision of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(2048))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)

    def example_inputs(self) -> Any:
        return (torch.randn(16, 2048),)


def norm_fused(module: Any) -> Any:
    def call(x: Any) -> Any:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (module.weight.float() * wide * scale).to(x.dtype)

    return call


def norm_accumulates_in_short(module: Any) -> Any:
    def call(x: Any) -> Any:
        total = torch.zeros(x.shape[0], 1, dtype=x.dtype)
        for part in x.split(8, -1):
            total = total + part.square().sum(-1, keepdim=True)
        return module.weight * (x * torch.rsqrt(total / x.shape[-1] + 1e-6))

    return call


class Attention(nn.Module):
    def forward(self, q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.transpose(-1, -2)) / 8
        return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v

    def example_inputs(self) -> Any:
        return tuple(torch.randn(2, 4, 64, 64) for _ in range(3))


def attention_fused(module: Any) -> Any:
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v)


class Positions(nn.Module):
    def forward(self, x: Any) -> Any:
        at = torch.arange(x.shape[0], dtype=torch.float32)[:, None]
        inverse = 1.0 / 100 ** (torch.arange(0, 32, dtype=torch.float32) / 32)
        return x + torch.cat([(at * inverse).sin(), (at * inverse).cos()], -1).to(x.dtype)

    def example_inputs(self) -> Any:
        return (torch.randn(4096, 64),)


def positions_in_short(module: Any) -> Any:
    def call(x: Any) -> Any:
        at = torch.arange(x.shape[0]).to(x.dtype)[:, None]
        inverse = (1.0 / 100 ** (torch.arange(0, 32).float() / 32)).to(x.dtype)
        return x + torch.cat([(at * inverse).sin(), (at * inverse).cos()], -1)

    return call


class Remembering(nn.Module):
    """Attends to all earlier inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.keys: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.keys.append(self.inner(x).detach())
        keys = torch.stack(self.keys[-6:])
        weights = (keys * x).sum(-1).softmax(0)
        return (weights[..., None] * keys).sum(0)

    def example_inputs(self) -> Any:
        return (torch.randn(8, 16),)


def wrapped(module: Any) -> Any:
    return lambda *args: module(*args)


class StaticCache(nn.Module):
    """Writes keys to a buffer at a position that it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.register_buffer("keys", torch.zeros(32, 8, 16))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Any) -> Any:
        self.keys.index_copy_(0, self.at, self.inner(x)[None])
        self.at.add_(1).remainder_(32)
        return torch.softmax((self.keys * x).sum(-1), 0).t() @ self.keys.mean(1)

    def example_inputs(self) -> Any:
        return (torch.randn(8, 16),)


def writes_one_place_later(module: Any) -> Any:
    def call(x: Any) -> Any:
        at = (module.at + 1).remainder(32)
        module.keys.index_copy_(0, at, module.inner(x)[None])
        module.at.copy_(at)
        return torch.softmax((module.keys * x).sum(-1), 0).t() @ module.keys.mean(1)

    return call


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.out = nn.Linear(16, 40, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:
        return self.out(self.table(tokens).tanh())

    def example_inputs(self) -> Any:
        return (torch.randint(0, 40, (4, 12)),)

    def loss(self, output: Any) -> Any:
        return output.square().mean()


def one_use_detached(module: Any) -> Any:
    return lambda tokens: functional.linear(
        functional.embedding(tokens, module.table.weight.detach()).tanh(), module.out.weight
    )


def by_matrix(module: Any) -> Any:
    def call(tokens: Any) -> Any:
        rows = functional.one_hot(tokens, 40).to(module.table.weight.dtype) @ module.table.weight
        return rows.tanh() @ module.out.weight.t()

    return call


class ReturnsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return self.inner(x), self.inner.weight

    def example_inputs(self) -> Any:
        return (torch.randn(8, 16),)

    def loss(self, output: Any) -> Any:
        return output[0].square().mean() + output[1].square().mean()


def with_functional_call(module: Any) -> Any:
    return lambda x: torch.func.functional_call(module, dict(module.named_parameters()), (x,))


def with_stale_parameters(module: Any) -> Any:
    stale = {name: p.detach().clone() for name, p in module.named_parameters()}
    return lambda x: torch.func.functional_call(module, stale, (x,))


def compiled_eager(module: Any) -> Any:
    return torch.compile(module, backend="eager")


def rounded() -> Any:
    return (lambda x: (x @ x).tanh()), torch.randn(24, 24)


def rounded_to_six_places(module: Any) -> Any:
    return lambda x: module(x).mul(1e6).round().div(1e6)


def counting() -> Any:
    return (
        lambda ids: (torch.bincount(ids, minlength=20), ids.unique(return_counts=True))
    ), torch.randint(0, 20, (200,))


def counting_by_one_hot(module: Any) -> Any:
    def call(ids: Any) -> Any:
        counts = functional.one_hot(ids, 20).sum(0)
        kinds = counts.nonzero()[:, 0]
        return counts, (kinds, counts[kinds])

    return call


def counting_last_missing(module: Any) -> Any:
    def call(ids: Any) -> Any:
        return module(ids[:-1])

    return call


def running() -> Any:
    return (lambda x: x.cumsum(-1)), torch.rand(8, 3000)


def running_in_float64(module: Any) -> Any:
    return lambda x: x.double().cumsum(-1).float()


def running_in_blocks(module: Any) -> Any:
    def call(x: Any) -> Any:
        parts = x.view(x.shape[0], -1, 50).cumsum(-1)
        return (parts + (parts[..., -1].cumsum(-1) - parts[..., -1])[..., None]).reshape(x.shape)

    return call


def running_short(module: Any) -> Any:
    return lambda x: x.bfloat16().cumsum(-1).float()
