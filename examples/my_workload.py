"""A workload of one's own: a small network with inputs, a loss and an optimiser.

    torchyard bench examples/my_workload.py --mode training

Nothing of Torchyard is imported here. See docs/howto/your-own-workload.md.
"""

import torch
from torch import nn


class Wide:
    """Called with those of batch_size, device, mode and the parameters that it names here."""

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
        """From the network's output to a scalar; leave it out and there is no training."""
        return output.square().mean()

    def optimizer(self, parameters: list) -> torch.optim.Optimizer:
        """May be left out: plain gradient descent is the default."""
        return torch.optim.AdamW(parameters, lr=1e-3)
