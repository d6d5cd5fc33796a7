"""Small workloads for the corpus of candidates; each takes a candidate derived from its module."""

# mypy: disable-error-code="misc"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn


class Net(nn.Module):
    """Two linear layers; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.first(x))
        return self.second(hidden), hidden

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)

    def loss(self, output: Any) -> torch.Tensor:
        return output[0].square().mean()


class Plain(nn.Module):
    """One tensor in, one tensor out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x))

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)


class Heavy(Plain):
    """Slow enough for remembered results to pay."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(*(nn.Linear(192, 192) for _ in range(6)))

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(192, 192),)


class Normed(nn.Module):
    """Batch normalisation: running statistics change in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        return output.square().mean() + output[:, 0].mean()


class InPlace(nn.Module):
    """Writes its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        return x + 1

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)


class Rewriting(nn.Module):
    """Writes the values into a buffer that it already has, as a cache of keys and values does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        with torch.no_grad():
            self.register_buffer("table", self.inner.weight @ self.inner.weight.t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table.copy_(self.inner.weight @ self.inner.weight.t())
        return x @ self.table

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)


class Counting(nn.Module):
    """A buffer that every call changes, and that the output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)


class KeyValueCache(nn.Module):
    """A cache of keys in a buffer that starts over when it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 16)
        self.register_buffer("keys", torch.zeros(4, 8, 16))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = int(self.place) % 4
        if place == 0:
            self.keys.zero_()
        self.keys[place] = self.project(x)
        self.place += 1
        return self.keys.sum(0)

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)


@dataclass
class Pair:
    """An output that is no container of torch's."""

    left: torch.Tensor
    right: torch.Tensor


class Named(NamedTuple):
    """A named tuple."""

    left: torch.Tensor
    right: torch.Tensor


class Returning(nn.Module):
    """The container is chosen by the subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 4)

    def wrap(self, one: torch.Tensor, two: torch.Tensor) -> Any:
        return one, two

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.inner(x), x.sum(1))

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)


class InDict(Returning):
    def wrap(self, one: torch.Tensor, two: torch.Tensor) -> Any:
        return {"one": one, "two": two}


class InDataclass(Returning):
    def wrap(self, one: torch.Tensor, two: torch.Tensor) -> Any:
        return Pair(one, two)


class InList(Returning):
    def wrap(self, one: torch.Tensor, two: torch.Tensor) -> Any:
        return [one, two, None, 3, "text"]


class InNamedTuple(Returning):
    def wrap(self, one: torch.Tensor, two: torch.Tensor) -> Any:
        return Named(one, two)


class Nested(Returning):
    def wrap(self, one: torch.Tensor, two: torch.Tensor) -> Any:
        return {"deep": [(one, {"more": two})], "number": 2.5}


class Views(nn.Module):
    """Outputs that share storage with the input."""

    def forward(self, x: torch.Tensor) -> Any:
        return x, x.t(), x[:2]

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)


class Tokens(nn.Module):
    """Indices, a padding mask and positions as inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 8)
        self.places = nn.Embedding(6, 8)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, place: torch.Tensor) -> Any:
        found = self.table(tokens) + self.places(place)
        return (found * mask[..., None]).sum(1)

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        mask = (torch.arange(6)[None] < torch.tensor([6, 4, 3, 5])[:, None]).long()
        return torch.randint(0, 32, (4, 6)), mask, torch.arange(6).expand(4, 6).contiguous()


class Bags(nn.Module):
    """Offsets must stay sorted."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(32, 8, mode="sum")

    def forward(self, tokens: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bag(tokens, offsets)

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return torch.randint(0, 32, (12,)), torch.tensor([0, 3, 3, 9])


class Hooked(Plain):
    """A module that uses hooks and a generator itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner.register_forward_hook(lambda _module, _inputs, output: output * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (chunk for chunk in self.inner(x).chunk(2, dim=1))
        return torch.cat(list(parts), dim=1)


class Aliased(nn.Module):
    """The same tensor given twice, and an output that is an input."""

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> Any:
        return one, one + two

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        x = torch.randn(8, 16)
        return x, x


class Logarithm(nn.Module):
    """Only positive inputs are valid."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log().softmax(-1)

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.rand(8, 16) + 0.1,)


class NotANumber(nn.Module):
    """Nothing finite."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float("nan")

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)


class Infinite(NotANumber):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, float("inf"))


class Empty(NotANumber):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:0]


class Dropping(Plain):
    """Draws random numbers in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(torch.tanh(self.inner(x)), 0.2, self.training)


class Large(Plain):
    """The batch is cut by a constant of the module: a smaller batch is valid."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x))[:4]


class Recompiling(nn.Module):
    """Control flow that depends on a Python counter."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps = (self.steps + 1) % 3
        for _ in range(1):
            x = self.inner(x)
        return x + 0 * self.steps

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)
