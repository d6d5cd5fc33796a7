"""A workload on the toy device. Importing it registers the backend, as a user's file does."""

from __future__ import annotations

from typing import Any

import torch
import toy_device  # type: ignore[import-not-found]  # noqa: F401 - registers the device
from torch import nn


def build(device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A small network in float32."""
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
    return model, (torch.randn(4, 32, device=device),)


class Twice(nn.Module):  # type: ignore[misc]
    """The same network with its second part computed twice."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.model[1](self.model[0](x))
        self.model[2](hidden)
        return self.model[2](hidden)


def twice(module: nn.Sequential) -> nn.Module:
    """A backend that does more work."""
    return Twice(module)


def trained(device: str) -> tuple[nn.Module, tuple[Any, ...], Any]:
    """The same with a loss."""
    return (*build(device), torch.Tensor.sum)
