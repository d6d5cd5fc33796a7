"""Waste in the Python code of torch, in ordinary programs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def encoder_layers_of_torch() -> None:
    """Multi-head attention selects queries, keys and values out of one projection."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        lengths = torch.randint(16, 33, (8,))
        padding = torch.arange(32)[None, :] >= lengths[:, None]
        # waste: sparse gradient, aten::select_backward
        hidden = model(torch.randn(8, 32, 64), src_key_padding_mask=padding)
        optimizer.zero_grad()
        hidden.masked_fill(padding[:, :, None], 0).pow(2).mean().backward()
        optimizer.step()


def transformer_of_torch() -> None:
    """The same, and its causal mask is turned into numbers in every step."""
    model = nn.Transformer(32, 4, 1, 1, 64, dropout=0.1, batch_first=True)
    causal = nn.Transformer.generate_square_subsequent_mask(64)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        source, target = torch.randn(4, 64, 32), torch.randn(4, 64, 32)
        # waste: sparse gradient, aten::select_backward
        # waste: unchanged across steps, aten::where
        result = model(source, target, tgt_mask=causal, tgt_is_causal=True)
        optimizer.zero_grad()
        F.mse_loss(result, target).backward()
        optimizer.step()
