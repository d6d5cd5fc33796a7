"""A small decoder-only transformer that predicts the next token (in the manner of GPT-2)."""

from typing import Any

import torch
from torch import nn

from torchyard.worker.built import Built
from torchyard.worker.suites import losses
from torchyard.worker.suites.choices import Choices
from torchyard.worker.suites.transformer_block import TransformerBlock, require_whole_heads


class Gpt(nn.Module):
    """Embedding with learned positions, blocks that see the past, head tied to the embedding."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        width = choices["width"]
        self.embedding = nn.Embedding(choices["vocabulary"], width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = nn.Parameter(torch.randn(choices["length"], width) * 0.02)
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(width, choices["heads"], causal=True)
                for _ in range(choices["layers"])
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, choices["vocabulary"], bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        """Logits of the next token at every place."""
        hidden = self.blocks(self.embedding(tokens) + self.positions)
        return self.head(self.norm(hidden))


def make(choices: Choices, device: Any) -> Built:
    """The network with random text; each token's target is the one after it."""
    require_whole_heads(choices)
    module = Gpt(choices)
    text = torch.randint(choices["vocabulary"], (choices.rows, choices["length"] + 1))
    return Built(
        module,
        (text[:, :-1].contiguous().to(device),),
        loss=losses.cross_entropy(text[:, 1:].contiguous().to(device)),
        loss_said="cross-entropy",
        optimizer=losses.adamw(1e-4),
    )
