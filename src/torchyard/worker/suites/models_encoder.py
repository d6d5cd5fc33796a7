"""An encoder-only transformer that classifies sequences of tokens (in the manner of BERT)."""

from typing import Any

import torch
from torch import nn

from torchyard.worker.built import Built
from torchyard.worker.suites import losses
from torchyard.worker.suites.choices import Choices
from torchyard.worker.suites.transformer_block import TransformerBlock, require_whole_heads


class TransformerEncoder(nn.Module):
    """Embedding with learned positions, blocks that see the whole sequence, mean, linear head."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        width = choices["width"]
        self.embedding = nn.Embedding(choices["vocabulary"], width)
        self.positions = nn.Parameter(torch.randn(choices["length"], width) * 0.02)
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(width, choices["heads"], causal=False)
                for _ in range(choices["layers"])
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, choices["classes"])

    def forward(self, tokens: Any) -> Any:
        """Logits."""
        hidden = self.blocks(self.embedding(tokens) + self.positions)
        return self.head(self.norm(hidden).mean(dim=1))


def make(choices: Choices, device: Any) -> Built:
    """The network with random tokens and classes."""
    require_whole_heads(choices)
    module = TransformerEncoder(choices)
    tokens = torch.randint(choices["vocabulary"], (choices.rows, choices["length"]))
    targets = torch.randint(choices["classes"], (choices.rows,))
    return Built(
        module,
        (tokens.to(device),),
        loss=losses.cross_entropy(targets.to(device)),
        loss_said="cross-entropy",
        optimizer=losses.adamw(1e-4),
    )
