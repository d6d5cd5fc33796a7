"""A function that is only evaluated."""

import torch

from torchbenchmark.util.model import BenchmarkModel


class Model(BenchmarkModel):
    """Evaluate."""

    DEFAULT_EVAL_BSIZE = 2

    def get_module(self):
        return lambda values: values * 2, (torch.ones(self.batch_size, device=self.device),)
