"""A small language model with named inputs and an output that holds its loss."""

import torch
from torch import nn

from torchbenchmark.util.model import BenchmarkModel


class LanguageModel(nn.Module):
    """Predicts each token from itself."""

    def __init__(self, words):
        super().__init__()
        self.embedding = nn.Embedding(words, 16)
        self.head = nn.Linear(16, words)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.embedding(input_ids))
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class Model(BenchmarkModel):
    """Train and evaluate; half precision when nobody asks."""

    DEFAULT_TRAIN_BSIZE = 2
    DEFAULT_EVAL_BSIZE = 1

    def __init__(self, test, device, batch_size=None, extra_args=()):
        super().__init__(test, device, batch_size, extra_args)
        self.model = LanguageModel(32).to(device, torch.bfloat16)
        ids = torch.randint(32, (self.batch_size, 6), device=device)
        self.example_inputs = {"input_ids": ids}
        if test == "train":
            self.example_inputs["labels"] = ids
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.125)

    def get_module(self):
        return self.model, self.example_inputs
