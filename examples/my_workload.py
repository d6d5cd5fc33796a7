"""A workload of one's own: a small network with inputs, a loss and an optimiser.

    torchyard bench examples/my_workload.py --mode training

Nothing of Torchyard is imported here. See docs/howto/your-own-workload.md.
"""

import torch
from torch import nn


class Wide:
    """A workload; `__init__` may name batch_size, device, mode and parameters of its own."""

    def __init__(self, batch_size: int = 8, width: int = 256) -> None:
        self.batch_size = batch_size
        self.width = width
        self.flops = 2 * batch_size * (width * 4 * width + 4 * width * 10)

    def module(self) -> nn.Module:
        """The network, with random weights."""
        return nn.Sequential(
            nn.Linear(self.width, 4 * self.width), nn.GELU(), nn.Linear(4 * self.width, 10)
        )

    def inputs(self) -> torch.Tensor:
        """One tensor, a tuple of positional inputs, or a dict of named ones."""
        return torch.randn(self.batch_size, self.width)

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        """From the network's output to a scalar. Optional; training needs it."""
        return output.square().mean()

    def optimizer(self, parameters: list) -> torch.optim.Optimizer:
        """Optional; the default is plain SGD."""
        return torch.optim.AdamW(parameters, lr=1e-3)
