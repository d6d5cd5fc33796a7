"""Small workloads whose results are more than tensors; each takes a candidate derived from its module."""

# mypy: disable-error-code="misc"

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


class Projected(nn.Module):
    """A tensor, and what the subclass makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.inner(x)
        return y, self.rest(y)

    def rest(self, y: torch.Tensor) -> Any:
        return y[:0]

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)


class WithText(Projected):
    def rest(self, y: torch.Tensor) -> str:
        return "a" * 100 + str(int(y.argmax()))


class WithNumber(Projected):
    def rest(self, y: torch.Tensor) -> float:
        return float(y.sum())


class WithTokens(Projected):
    def rest(self, y: torch.Tensor) -> list[int]:
        return [int(value) for value in y.argmax(1)]


class WithArray(Projected):
    def rest(self, y: torch.Tensor) -> Any:
        return y.detach().numpy()


class WithSet(Projected):
    def rest(self, y: torch.Tensor) -> set[int]:
        return {int(value) for value in y.argmax(1)}


@dataclass(slots=True)
class Slots:
    """A dataclass without `__dict__`."""

    left: torch.Tensor
    right: torch.Tensor


class WithSlots(Projected):
    def rest(self, y: torch.Tensor) -> Slots:
        return Slots(y + 1, y + 2)


class WithDeque(Projected):
    def rest(self, y: torch.Tensor) -> deque[torch.Tensor]:
        return deque([y + 1])


class WithIterator(Projected):
    def rest(self, y: torch.Tensor) -> Iterator[torch.Tensor]:
        return iter([y + 1])


class Function:
    """A callable result: its attributes are not compared."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __call__(self) -> torch.Tensor:
        return self.tensor


class WithFunction(Projected):
    def rest(self, y: torch.Tensor) -> Function:
        return Function(y + 1)


class WithConstants(Projected):
    def rest(self, y: torch.Tensor) -> Any:
        return y.dtype, y.device, range(3), None, 2.5, 1j, b"bytes", 2**80


class Masked(Projected):
    """Infinities, as masked logits have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(8, 16)
        mask[:, :4] = float("-inf")
        return self.inner(x) + mask[: x.shape[0]]


class Eighth(Projected):
    """A type without arithmetic."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).to(torch.float8_e4m3fn)


class Parts(Projected):
    """Nested tensors with parts of two lengths, the last row of one being zero."""

    def rest(self, y: torch.Tensor) -> Any:
        return torch.nested.nested_tensor([y[:3], torch.cat([y[:3], torch.zeros(1, 16)])])


class Config:
    """Settings of a model, as many libraries have them."""

    def __init__(self) -> None:
        self.repeats = 1


class Configured(nn.Module):
    """The amount of work, but not the result, depends on attributes."""

    repeats = 1

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.config = Config()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = (self.calls + 1) % 3
        y = activation(self.inner(x))
        for _ in range(max(self.repeats, self.config.repeats) - 1):
            y = activation(self.inner(x))
        return y

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, 16),)

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        return output.square().mean()


def activation(x: torch.Tensor) -> torch.Tensor:
    """The function of this file that the models call."""
    return torch.tanh(x)


class FromDict(Configured):
    """Containers as inputs."""

    def forward(self, values: dict[str, Any]) -> torch.Tensor:
        y = activation(self.inner(values["x"]))
        for _ in range(len(values) - 1):
            y = activation(self.inner(values["x"]))
        return y

    def example_inputs(self) -> tuple[Any, ...]:
        return ({"x": torch.randn(8, 16)},)


class WithoutInputs(nn.Module):
    """Only parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(128, 128)

    def forward(self) -> torch.Tensor:
        return self.inner.weight @ self.inner.weight

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return ()


class Wide(nn.Module):
    """Slow enough for remembered results to pay."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randn(128, 128),)
