"""Chains of equal layers, and backends that run an exact number of layers more.

A hundred layers and two more is two percent more work: a slowdown of known size for calibration.
`plus_0` is the baseline: the same Python code with no layer more. `Convolutions` and `captured` are
workloads beside the kernel `layered-mlp`; the tensors of `captured` belong to closures, where
Torchyard cannot relocate them in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

LAYERS = 100
DISTINCT = 8


class Convolutions(nn.Module):  # type: ignore[misc]
    """A hundred convolutions with the same image size."""

    def __init__(self) -> None:
        super().__init__()
        self.count = LAYERS
        self.weights = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(DISTINCT))

    def forward(self, values: Any) -> Any:
        """Return the values after the last layer."""
        return _longer(self, 0)(values)


class Captured(nn.Module):  # type: ignore[misc]
    """A hundred layers whose weights are captured by closures, so that no module has them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = LAYERS
        self.weights = [_layer(torch.randn(384, 384) / 16.0) for _ in range(DISTINCT)]

    def forward(self, values: Any) -> Any:
        """Return the values after the last layer."""
        return _longer(self, 0)(values)


def _layer(weight: Any) -> Callable[[Any], Any]:
    return lambda values: functional.layer_norm(values @ weight, (384,))


def convolutions() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the workload."""
    return Convolutions(), (torch.randn(2, 16, 32, 32),)


def captured() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the workload."""
    return Captured(), (torch.randn(16, 384),)


def _longer(module: Any, extra: int) -> Callable[[Any], Any]:
    weights = list(module.weights)
    count = module.count + extra

    def forward(values: Any) -> Any:
        for index in range(count):
            values = functional.relu(weights[index % len(weights)](values))
        return values

    return forward


def plus_0(module: Any) -> Callable[[Any], Any]:
    """No layer more."""
    return _longer(module, 0)


def plus_1(module: Any) -> Callable[[Any], Any]:
    """One layer more."""
    return _longer(module, 1)


def plus_2(module: Any) -> Callable[[Any], Any]:
    """Two layers more."""
    return _longer(module, 2)


def plus_5(module: Any) -> Callable[[Any], Any]:
    """Five layers more."""
    return _longer(module, 5)
