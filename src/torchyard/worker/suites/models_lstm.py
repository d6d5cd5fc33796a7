"""A long short-term memory that classifies sequences of tokens."""

from typing import Any

import torch
from torch import nn

from torchyard.worker.built import Built
from torchyard.worker.suites import losses
from torchyard.worker.suites.choices import Choices


class Lstm(nn.Module):
    """Embedding, stacked LSTM, linear head on the last place."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        width = choices["width"]
        self.embedding = nn.Embedding(choices["vocabulary"], width)
        self.lstm = nn.LSTM(width, width, num_layers=choices["layers"], batch_first=True)
        self.head = nn.Linear(width, choices["classes"])

    def forward(self, tokens: Any) -> Any:
        """Logits."""
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden[:, -1])


def make(choices: Choices, device: Any) -> Built:
    """The network with random tokens and classes."""
    module = Lstm(choices)
    tokens = torch.randint(choices["vocabulary"], (choices.rows, choices["length"]))
    targets = torch.randint(choices["classes"], (choices.rows,))
    return Built(
        module,
        (tokens.to(device),),
        loss=losses.cross_entropy(targets.to(device)),
        loss_said="cross-entropy",
        optimizer=losses.sgd(1e-3),
    )
