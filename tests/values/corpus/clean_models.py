"""Clean programs: ordinary models, trained for a few steps on fresh batches."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

STEPS = 4


def _train(model: nn.Module, loss_of: Callable[[], Tensor], steps: int = STEPS) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()


def multilayer_perceptron() -> None:
    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(128, 128),
        nn.GELU(),
        nn.Linear(128, 10),
    )
    _train(model, lambda: F.cross_entropy(model(torch.randn(64, 64)), torch.randint(0, 10, (64,))))


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + x)


def residual_network() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        _ResidualBlock(16),
        _ResidualBlock(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    _train(
        model,
        lambda: F.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.randint(0, 10, (8,))),
    )


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.packed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.packed(x).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = _Attention(width, 4)
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class _LanguageModel(nn.Module):
    def __init__(self, vocabulary: int = 64, width: int = 64, length: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def language_model() -> None:
    model = _LanguageModel()

    def loss() -> Tensor:
        tokens = torch.randint(0, 64, (8, 65))
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    _train(model, loss)


class _SinusoidalPlaces(nn.Module):
    table: Tensor

    def __init__(self, width: int, length: int = 128) -> None:
        super().__init__()
        place = torch.arange(length).unsqueeze(1)
        frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(length, width)
        table[:, 0::2] = torch.sin(place * frequency)
        table[:, 1::2] = torch.cos(place * frequency)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


class _MaskedAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.places = _SinusoidalPlaces(width)
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.v, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.places(x)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        weight = scores.masked_fill(padding[:, None, :], float("-inf")).softmax(-1)
        return x + self.out(F.dropout(weight, 0.1) @ self.v(x))


def attention_with_padding_mask() -> None:
    model = _MaskedAttention(64)

    def loss() -> Tensor:
        lengths = torch.randint(16, 33, (8,))
        padding = torch.arange(32)[None, :] >= lengths[:, None]
        hidden = model(torch.randn(8, 32, 64), padding)
        return hidden.masked_fill(padding[:, :, None], 0).pow(2).mean()

    _train(model, loss)


def long_short_term_memory() -> None:
    lstm, head = nn.LSTM(16, 64, 2, batch_first=True, dropout=0.1), nn.Linear(64, 8)
    model = nn.ModuleList([lstm, head])

    def loss() -> Tensor:
        hidden, _ = lstm(torch.randn(16, 20, 16))
        return F.cross_entropy(head(hidden[:, -1]), torch.randint(0, 8, (16,)))

    _train(model, loss)


def gated_recurrent_unit() -> None:
    gru, head = nn.GRU(16, 64, batch_first=True, bidirectional=True), nn.Linear(128, 1)
    model = nn.ModuleList([gru, head])

    def loss() -> Tensor:
        hidden, _ = gru(torch.randn(16, 20, 16))
        return F.mse_loss(head(hidden).squeeze(-1), torch.randn(16, 20))

    _train(model, loss)


def recurrent_cell_in_a_loop() -> None:
    cell, head = nn.LSTMCell(32, 64), nn.Linear(64, 4)
    model = nn.ModuleList([cell, head])

    def loss() -> Tensor:
        hidden, memory = torch.zeros(64, 64), torch.zeros(64, 64)
        for part in torch.randn(64, 12, 32).unbind(1):
            hidden, memory = cell(part, (hidden, memory))
        return F.cross_entropy(head(hidden), torch.randint(0, 4, (64,)))

    _train(model, loss)


def bag_of_words_classifier() -> None:
    bag, head = nn.EmbeddingBag(200, 32), nn.Linear(32, 4)
    model = nn.ModuleList([bag, head])

    def loss() -> Tensor:
        words = torch.randint(0, 200, (1200,))
        starts = torch.arange(0, 1200, 20)
        return F.cross_entropy(head(bag(words, starts)), torch.randint(0, 4, (60,)))

    _train(model, loss)


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(2, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        coarse = self.middle(F.max_pool2d(fine, 2))
        return self.out(torch.cat([fine, self.up(coarse)], dim=1))


def unet_segmentation() -> None:
    model = _UNet()
    _train(
        model,
        lambda: F.cross_entropy(model(torch.randn(4, 1, 32, 32)), torch.randint(0, 2, (4, 32, 32))),
    )


def upsampling_decoder() -> None:
    model = nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Conv2d(16, 3, 3, padding=1),
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        nn.Sigmoid(),
    )
    _train(model, lambda: F.l1_loss(model(torch.randn(4, 8, 16, 16)), torch.rand(4, 3, 64, 64)))


def variational_autoencoder() -> None:
    encoder = nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 32))
    decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 196))
    model = nn.ModuleList([encoder, decoder])

    def loss() -> Tensor:
        image = torch.rand(64, 196)
        mean, log_variance = encoder(image).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        rebuilt = F.binary_cross_entropy_with_logits(decoder(code), image)
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).mean()
        return rebuilt + 0.1 * divergence

    _train(model, loss)


def convolutional_autoencoder() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
    )

    def loss() -> Tensor:
        image = torch.rand(8, 1, 32, 32)
        return F.mse_loss(model(image), image)

    _train(model, loss)


class _GraphLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.other = nn.Linear(width, width)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        messages = self.other(nodes).index_select(0, source)
        gathered = torch.zeros_like(nodes).index_add(0, target, messages)
        return F.relu(self.own(nodes) + gathered)


def message_passing_on_a_graph() -> None:
    model = nn.ModuleList([_GraphLayer(32), _GraphLayer(32)])

    def loss() -> Tensor:
        nodes = torch.randn(200, 32)
        source, target = torch.randint(0, 200, (800,)), torch.randint(0, 200, (800,))
        for layer in model:
            nodes = layer(nodes, source, target)
        return nodes.pow(2).mean()

    _train(model, loss)


def grouped_and_dilated_convolutions() -> None:
    model = nn.Sequential(
        nn.Conv1d(16, 32, 5, padding=4, dilation=2, groups=4),
        nn.InstanceNorm1d(32, affine=True),
        nn.ELU(),
        nn.Conv1d(32, 16, 1),
        nn.Tanh(),
        nn.AvgPool1d(2),
    )
    _train(model, lambda: model(torch.randn(8, 16, 128)).pow(2).mean())


class _MixtureOfExperts(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        weight, choice = self.router(x).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(-1)
            result = result.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return result


def mixture_of_experts() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), _MixtureOfExperts(64, 4))
    _train(model, lambda: F.mse_loss(model(torch.randn(128, 32)), torch.randn(128, 64)))
