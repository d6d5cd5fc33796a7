"""One of each form that a workload of a user's own can have."""

from typing import Any

import beside
import torch
from torch import nn


def make(batch_size: int = 2, width: int = 4) -> Any:
    return nn.Linear(width, 3), torch.ones(batch_size, width)


def triple(mode: str, device: Any) -> Any:
    loss = {"training": torch.sum, "inference": None}[mode]
    return nn.Linear(4, 3), (torch.ones(1, 4, device=device),), loss


def plain() -> Any:
    return torch.add, (torch.ones(2), torch.ones(2))


def named() -> Any:
    return lambda left, right: left - right, {"left": torch.ones(2), "right": torch.zeros(2)}


def nested() -> Any:
    return lambda pair, scale: pair[0] * scale, ((torch.ones(2), torch.ones(3)), 5)


def anything(**wishes: int) -> Any:
    return nn.Linear(wishes.get("width", 1), 1), torch.ones(wishes["batch_size"], wishes["width"])


def from_beside() -> Any:
    return nn.Linear(beside.WIDTH, 1), torch.ones(1, beside.WIDTH)


def needs(width: int) -> Any:
    return nn.Linear(width, 1), torch.ones(1, width)


class Parts:
    """The class form."""

    def __init__(self, batch_size: int = 3) -> None:
        self.batch_size = batch_size
        self.flops = 24 * batch_size

    def module(self) -> Any:
        return nn.Linear(4, 3)

    def inputs(self) -> Any:
        return {"input": torch.ones(self.batch_size, 4)}

    def loss(self, output: Any) -> Any:
        return output.mean()

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.Adam(parameters, lr=0.5)


class Net(nn.Module):  # type: ignore[misc]  # torch is seen as Any
    """The module form."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2)
        self.width = width

    def forward(self, values: Any) -> Any:
        return self.linear(values)

    def example_inputs(self) -> Any:
        return (torch.ones(5, self.width),)

    def loss(self, output: Any) -> Any:
        return output.sum()
