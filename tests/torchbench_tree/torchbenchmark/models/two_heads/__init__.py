"""Several outputs and no loss; the batch size is what it is."""

import torch
from torch import nn

from torchbenchmark.util.model import BenchmarkModel


class TwoHeads(nn.Module):
    """One body, two outputs and a count."""

    def __init__(self):
        super().__init__()
        self.body, self.other = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, values):
        body = self.body(values)
        return [body, {"other": self.other(body), "count": torch.tensor(3)}]


class Model(BenchmarkModel):
    """Train and evaluate, three rows at a time."""

    DEFAULT_TRAIN_BSIZE = 3
    DEFAULT_EVAL_BSIZE = 3
    ALLOW_CUSTOMIZE_BSIZE = False

    def __init__(self, test, device, batch_size=None, extra_args=()):
        super().__init__(test, device, batch_size, extra_args)
        self.model = TwoHeads().to(device)
        self.example_inputs = [torch.randn(self.batch_size, 4, device=device)]

    def get_module(self):
        return self.model, self.example_inputs
