"""Speculative decoding against greedy decoding: both must generate the same tokens.

    torchyard bench examples/speculative_decoding.py:Greedy examples/speculative_decoding.py:Speculative

A draft proposes `DRAFTED` tokens one after the other. The whole model checks all of them in one pass and keeps those
that it would have chosen itself, and then one token of its own. The draft is the first layer of the model. Weights
are random; the later layers change little, so that the draft is often right, as a trained one is.
"""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, VOCABULARY = 384, 6, 8, 4096
DRAFT_LAYERS, DRAFTED = 1, 4
PROMPT, GENERATED = 16, 24
LATE_CHANGE = 0.05
"""Factor of what the layers after the draft add: small, so that the draft is often right."""


class Layer(nn.Module):
    """Causal attention with a cache of keys and values, and a feed-forward network."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.norm, self.feed_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project_in, self.project_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        for last in (self.project_out, self.feed[2]):
            nn.init.normal_(last.weight, std=factor * WIDTH**-0.5)

    def forward(self, hidden: torch.Tensor, start: int, cache: torch.Tensor) -> torch.Tensor:
        """Write keys and values at `start`, and attend to everything up to each token."""
        batch, count, _ = hidden.shape
        split = self.project_in(self.norm(hidden)).view(batch, count, 3, HEADS, WIDTH // HEADS)
        projected = split.permute(2, 0, 3, 1, 4)
        end = start + count
        cache[:, :, :, start:end] = projected[1:]
        places = torch.arange(end, device=hidden.device)
        visible = places[None, :] <= places[start:, None]
        attended = functional.scaled_dot_product_attention(
            projected[0], cache[0, :, :, :end], cache[1, :, :, :end], attn_mask=visible
        )
        hidden = hidden + self.project_out(attended.transpose(1, 2).reshape(hidden.shape))
        return hidden + self.feed(self.feed_norm(hidden))


class Decoder(nn.Module):
    """A language model that can also stop after its first layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(PROMPT + GENERATED + DRAFTED + 1, WIDTH) * 0.02)
        factors = [1.0 if index < DRAFT_LAYERS else LATE_CHANGE for index in range(LAYERS)]
        self.layers = nn.ModuleList(Layer(factor) for factor in factors)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def new_cache(self) -> torch.Tensor:
        """Return room for the keys and values of all layers."""
        shape = (LAYERS, 2, 1, HEADS, len(self.positions), WIDTH // HEADS)
        return torch.zeros(shape, dtype=self.positions.dtype, device=self.positions.device)

    def choose(
        self, tokens: torch.Tensor, start: int, cache: torch.Tensor, layers: int = LAYERS
    ) -> torch.Tensor:
        """Return the most likely next token after each of the tokens."""
        hidden = self.embedding(tokens) + self.positions[start : start + tokens.shape[1]]
        for index in range(layers):
            hidden = self.layers[index](hidden, start, cache[index])
        return self.head(self.norm(hidden)).argmax(dim=-1)


class GreedyDecoding(nn.Module):
    """One token in each pass of the whole model."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder()

    def forward(self, prompt: torch.Tensor) -> torch.Tensor:
        """Return the generated tokens."""
        cache = self.decoder.new_cache()
        token = self.decoder.choose(prompt, 0, cache)[:, -1:]
        text = [token]
        while len(text) < GENERATED:
            token = self.decoder.choose(token, PROMPT + len(text) - 1, cache)
            text.append(token)
        return torch.cat(text, dim=1)


class SpeculativeDecoding(nn.Module):
    """Several tokens in each pass of the whole model, as far as the draft was right."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder()

    def forward(self, prompt: torch.Tensor) -> torch.Tensor:
        """Return the generated tokens."""
        cache = self.decoder.new_cache()
        text = self.decoder.choose(prompt, 0, cache)[:, -1:]
        while text.shape[1] < GENERATED:
            start = PROMPT + text.shape[1] - 1
            proposed = text[:, -1:]
            for offset in range(DRAFTED):
                token = proposed[:, -1:]
                token = self.decoder.choose(token, start + offset, cache, DRAFT_LAYERS)
                proposed = torch.cat([proposed, token], dim=1)
            chosen = self.decoder.choose(proposed, start, cache)
            same = (proposed[0, 1:] == chosen[0, :-1]).long()
            accepted = int(same.cumprod(dim=0).sum())
            text = torch.cat([text, chosen[:, : accepted + 1]], dim=1)
        return text[:, :GENERATED]


class Greedy:
    """The workload of greedy decoding."""

    def module(self) -> nn.Module:
        """The model, with random weights."""
        return GreedyDecoding()

    def inputs(self) -> torch.Tensor:
        """One prompt."""
        return torch.randint(VOCABULARY, (1, PROMPT))


class Speculative(Greedy):
    """The workload of speculative decoding, with the same weights and prompt."""

    def module(self) -> nn.Module:
        """The model, with random weights."""
        return SpeculativeDecoding()
