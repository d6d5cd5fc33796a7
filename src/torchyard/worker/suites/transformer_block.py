"""The layer that the encoder and the GPT are made of, with the normalisation before each half."""

from typing import Any

from torch import nn
from torch.nn import functional

from torchyard.worker.suites.choices import Choices, require


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward network, each added to its input."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.attention_norm = nn.LayerNorm(width)
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Any) -> Any:
        """The tokens one layer further."""
        tokens = tokens + self._attend(self.attention_norm(tokens))
        return tokens + self.feed(self.feed_norm(tokens))

    def _attend(self, tokens: Any) -> Any:
        batch, length, width = tokens.shape
        split = self.project_in(tokens).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.project_out(attended.transpose(1, 2).reshape(batch, length, width))


def require_whole_heads(choices: Choices) -> None:
    """Refuse a width that the heads cannot share evenly."""
    width, heads = choices["width"], choices["heads"]
    require(
        width % heads == 0,
        choices.label,
        f"width {width} is not a multiple of heads {heads}",
        "give width a multiple of heads",
    )
