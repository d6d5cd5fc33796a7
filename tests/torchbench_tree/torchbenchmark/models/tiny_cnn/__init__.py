"""A small network over images, with a loss and an optimiser of its own."""

import torch
from torch import nn

from torchbenchmark.util.model import BenchmarkModel


class Model(BenchmarkModel):
    """Train and evaluate."""

    DEFAULT_TRAIN_BSIZE = 4
    DEFAULT_EVAL_BSIZE = 2

    def __init__(self, test, device, batch_size=None, extra_args=()):
        super().__init__(test, device, batch_size, extra_args)
        self.model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
        )
        self.example_inputs = (torch.randn(self.batch_size, 3, 8, 8),)
        self.model(*self.example_inputs)
        self.model.to(device)
        self.example_inputs = tuple(each.to(device) for each in self.example_inputs)
        self.example_outputs = torch.rand(self.batch_size, 10, device=device)
        self.loss_fn = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(self.model[0].parameters()), "lr": 0.5},
                {"params": list(self.model[4].parameters()), "weight_decay": 0.0},
            ],
            lr=0.25,
        )

    def get_module(self):
        return self.model, self.example_inputs

    def train(self):
        self.optimizer.zero_grad()
        self.loss_fn(self.model(*self.example_inputs), self.example_outputs).backward()
        self.optimizer.step()

    def eval(self):
        return (self.model(*self.example_inputs),)
