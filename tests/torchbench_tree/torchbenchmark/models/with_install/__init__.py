"""Needs a package that its install.py installs."""

import torch
import torchyard_tiny_extra
from torch import nn

from torchbenchmark.util.model import BenchmarkModel


class Model(BenchmarkModel):
    """Evaluate."""

    DEFAULT_EVAL_BSIZE = 2

    def __init__(self, test, device, batch_size=None, extra_args=()):
        super().__init__(test, device, batch_size, extra_args)
        self.model = nn.Linear(torchyard_tiny_extra.WIDTH, 2).to(device)

    def get_module(self):
        width = torchyard_tiny_extra.WIDTH
        return self.model, (torch.randn(self.batch_size, width, device=self.device),)
