"""Transformer blocks of the suite `models`, with self-attention and cross-attention.

`attention_kernel` of a block is `sdpa` (scaled_dot_product_attention) or `flex` (flex_attention); the option
`attention=flex` of a variant changes it in a copy of the module.
"""

from typing import Any, Optional

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.bench.options import FLEX
from torchyard.worker.suites.choices import Choices, require

SDPA = "sdpa"


class Attending(nn.Module):
    """A module with attention heads, and the kernel that they use."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_kernel = SDPA

    def mask_from(self, start: Any, count: int, keys: int) -> Any:
        """Return the mask with which query i of `count` attends to the keys up to start + i."""
        if self.attention_kernel == FLEX:
            return _block_mask(start, count, keys, start.device)
        positions = torch.arange(count, device=start.device) + start
        return torch.arange(keys, device=start.device)[None, :] <= positions[:, None]

    def attend(
        self, query: Any, keys: Any, values: Any, causal: bool = False, mask: Optional[Any] = None
    ) -> Any:
        """Return the attended values; a mask of `mask_from` replaces `causal`."""
        if self.attention_kernel == FLEX:
            from torch.nn.attention.flex_attention import flex_attention

            if causal and mask is None:
                mask = _block_mask(0, query.shape[2], keys.shape[2], query.device)
            return flex_attention(query, keys, values, block_mask=mask)
        return functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=causal and mask is None
        )

    def split(self, tokens: Any) -> Any:
        """Return the tokens as (batch, heads, length, width of a head)."""
        batch, length, width = tokens.shape
        return tokens.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


def _block_mask(start: Any, count: int, keys: int, device: Any) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def is_visible(batch: Any, head: Any, place: Any, key: Any) -> Any:  # noqa: ARG001
        return key <= place + start

    return create_block_mask(is_visible, None, None, count, keys, device=device)


class TransformerBlock(Attending):
    """Self-attention and a feed-forward network, each added to its input."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__(heads)
        self.causal = causal
        self.attention_norm = nn.LayerNorm(width)
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Any) -> Any:
        """Apply the layer to the tokens."""
        tokens = tokens + self._attend_to_itself(self.attention_norm(tokens))
        return tokens + self.feed(self.feed_norm(tokens))

    def _attend_to_itself(self, tokens: Any) -> Any:
        query, key, value = self.heads_of(tokens)
        return self.joined(self.attend(query, key, value, causal=self.causal))

    def heads_of(self, tokens: Any) -> Any:
        """Return queries, keys and values, each (batch, heads, length, width of a head)."""
        batch, length, width = tokens.shape
        split = self.project_in(tokens).view(batch, length, 3, self.heads, width // self.heads)
        return split.permute(2, 0, 3, 1, 4).unbind(0)

    def joined(self, attended: Any) -> Any:
        """Return the projected results of all heads."""
        batch, heads, length, width = attended.shape
        return self.project_out(attended.transpose(1, 2).reshape(batch, length, heads * width))


class CrossAttention(Attending):
    """Attention from tokens to a context of another width, added to the tokens."""

    def __init__(self, width: int, heads: int, context_width: int) -> None:
        super().__init__(heads)
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.keys = nn.Linear(context_width, width, bias=False)
        self.values = nn.Linear(context_width, width)
        self.project_out = nn.Linear(width, width)

    def forward(self, tokens: Any, context: Any) -> Any:
        """Apply the layer to the tokens."""
        query = self.split(self.query(self.norm(tokens)))
        keys, values = self.split(self.keys(context)), self.split(self.values(context))
        attended = self.attend(query, keys, values)
        return tokens + self.project_out(attended.transpose(1, 2).reshape(tokens.shape))


def require_whole_heads(choices: Choices) -> None:
    """Raise CannotBuild when the width is not a multiple of the number of heads."""
    width, heads = choices["width"], choices["heads"]
    require(
        width % heads == 0,
        choices.label,
        f"width {width} is not a multiple of heads {heads}",
        "give width a multiple of heads",
    )


def transformer_blocks(choices: Choices, causal: bool) -> Any:
    """Return `layers` blocks of the chosen width and number of heads."""
    return nn.Sequential(
        *(
            TransformerBlock(choices["width"], choices["heads"], causal)
            for _ in range(choices["layers"])
        )
    )
