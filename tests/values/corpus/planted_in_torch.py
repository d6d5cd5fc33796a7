"""Waste in the Python code of torch, in ordinary programs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def transformer_of_torch() -> None:
    """Its causal mask is turned into numbers in every step."""
    model = nn.Transformer(32, 4, 1, 1, 64, dropout=0.1, batch_first=True)
    causal = nn.Transformer.generate_square_subsequent_mask(64)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        source, target = torch.randn(4, 64, 32), torch.randn(4, 64, 32)
        # waste: unchanged across steps, aten::where
        result = model(source, target, tgt_mask=causal, tgt_is_causal=True)
        optimizer.zero_grad()
        F.mse_loss(result, target).backward()
        optimizer.step()
