"""Models of the corpus: small, and each difficult to check."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from torchyard.worker.workload import BuiltWorkload


def _sum_of_squares(output: Any) -> Any:
    return (output**2).sum()


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=1e-3)


def linear() -> BuiltWorkload:
    return BuiltWorkload(
        nn.Linear(64, 64), (torch.randn(64, 64),), loss=lambda out: out.mean(), optimizer=_sgd
    )


def mlp() -> BuiltWorkload:
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.GELU())
    net.append(nn.Linear(64, 16))
    return BuiltWorkload(net, (torch.randn(64, 64),), loss=_sum_of_squares, optimizer=_sgd)


def mlp_adam() -> BuiltWorkload:
    built = mlp()
    built.optimizer = _adam
    return built


def million() -> BuiltWorkload:
    """A million outputs."""
    return BuiltWorkload(nn.Linear(64, 1000), (torch.randn(1000, 64),))


def scalar() -> BuiltWorkload:
    class Norm(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.square().mean()

    return BuiltWorkload(Norm(), (torch.randn(4096),))


def mixed_sizes() -> BuiltWorkload:
    """Outputs of which columns differ by nine orders of magnitude."""

    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(32, 8)
            self.register_buffer("sizes", torch.tensor([1e6, 1, 1, 1, 1, 1, 1, 1e-3]))

        def forward(self, x: Any) -> Any:
            return self.first(x) * self.sizes

    return BuiltWorkload(Columns(), (torch.randn(32, 32),))


def small_vector() -> BuiltWorkload:
    class Pick(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sizes", torch.tensor([1e6, 1e3, 1.0, 1e-3]))
            self.first = nn.Linear(16, 4)

        def forward(self, x: Any) -> Any:
            return self.first(x) * self.sizes

    return BuiltWorkload(Pick(), (torch.randn(16),))


class ConvNet(nn.Module):
    """Gradients of the biases before normalisation are zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        self.last = nn.Linear(8 * 8 * 8, 10)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.last(x.flatten(1))


def convnet() -> BuiltWorkload:
    labels = torch.randint(0, 10, (16,))
    return BuiltWorkload(
        ConvNet(),
        (torch.randn(16, 3, 12, 12),),
        loss=lambda out: F.cross_entropy(out.float(), labels),
        optimizer=_sgd,
    )


def batch_norm() -> BuiltWorkload:
    net = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 1))
    return BuiltWorkload(net, (torch.randn(64, 32),), loss=_sum_of_squares, optimizer=_sgd)


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.into = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.dropout = dropout

    def forward(self, x: Any) -> Any:
        return self.out(self.attend(x))

    def heads(self, x: Any) -> Any:
        batch, length, _ = x.shape
        return (
            part.reshape(batch, length, 4, 8).transpose(1, 2)
            for part in self.into(x).chunk(3, dim=-1)
        )

    def attend(self, x: Any) -> Any:
        query, key, value = self.heads(x)
        probability = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=probability
        )
        return mixed.transpose(1, 2).reshape(x.shape)


def attention() -> BuiltWorkload:
    return BuiltWorkload(Attention(), (torch.randn(4, 24, 32),), loss=_sum_of_squares)


def transformer() -> BuiltWorkload:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return BuiltWorkload(layer, (torch.randn(4, 16, 32),), loss=_sum_of_squares, optimizer=_adam)


def layer_norm() -> BuiltWorkload:
    net = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 32))
    return BuiltWorkload(net, (torch.randn(32, 64),), loss=_sum_of_squares)


def flat_rows() -> BuiltWorkload:
    """Rows that hardly vary, so that the variance is a matter of rounding."""
    return BuiltWorkload(nn.LayerNorm(64), (1000 + 1e-3 * torch.randn(16, 64),))


def large_logits() -> BuiltWorkload:
    class Softmax(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(32, 64)

        def forward(self, x: Any) -> Any:
            return torch.softmax(100 * self.first(x), dim=-1)

    return BuiltWorkload(Softmax(), (10 * torch.randn(32, 32),), loss=lambda out: (out * out).sum())


def lstm() -> BuiltWorkload:
    return BuiltWorkload(
        nn.LSTM(16, 32, 2), (torch.randn(12, 4, 16),), loss=lambda out: out[0].sum()
    )


def gru() -> BuiltWorkload:
    return BuiltWorkload(nn.GRU(16, 32), (torch.randn(12, 4, 16),), loss=lambda out: out[0].sum())


def embedding() -> BuiltWorkload:
    """Many gradients are added to few rows."""
    net = nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 4))
    return BuiltWorkload(net, (torch.randint(0, 8, (64, 32)),), loss=_sum_of_squares)


def embedding_bag() -> BuiltWorkload:
    net = nn.EmbeddingBag(50, 16, mode="mean")
    return BuiltWorkload(net, (torch.randint(0, 50, (16, 8)),), loss=_sum_of_squares)


def sparse_gradient() -> BuiltWorkload:
    table = nn.Embedding(50, 4, sparse=True)
    return BuiltWorkload(table, (torch.tensor([1, 7, 7, 30]),), loss=_sum_of_squares)


def sparse() -> BuiltWorkload:
    class Sparse(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x * (x > 1)).to_sparse()

    return BuiltWorkload(Sparse(), (torch.randn(32, 32),))


def waves() -> BuiltWorkload:
    class Turn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.randn(64, dtype=torch.complex64))

        def forward(self, x: Any) -> Any:
            return torch.fft.fft(x) * self.by

    return BuiltWorkload(Turn(), (torch.randn(8, 64),), loss=lambda out: out.abs().sum())


def indices() -> BuiltWorkload:
    class Top(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 128)

        def forward(self, x: Any) -> Any:
            logits = self.first(x)
            return logits, logits.topk(5).indices, logits.argmax(-1), logits > 0

    return BuiltWorkload(Top(), (torch.randn(256, 64),))


def ties() -> BuiltWorkload:
    """Logits of few different values: the order of equal ones is free."""

    class Ties(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.round().topk(3).indices, x.round().topk(3).values

    return BuiltWorkload(Ties(), (2 * torch.randn(64, 32),))


def counts() -> BuiltWorkload:
    class Counts(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.bincount(x.flatten(), minlength=64), x > 30

    return BuiltWorkload(Counts(), (torch.randint(0, 64, (1000,)),))


def empty() -> BuiltWorkload:
    class Empty(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[x > 100], x * 2

    return BuiltWorkload(Empty(), (torch.randn(64),))


def in_place() -> BuiltWorkload:
    class InPlace(nn.Module):
        def forward(self, x: Any) -> Any:
            y = x * 0.37
            y.add_(x, alpha=1.7).mul_(0.3).relu_()
            y[:, 0] = 5.0
            return y

    return BuiltWorkload(InPlace(), (torch.randn(64, 64),))


def long_sum() -> BuiltWorkload:
    class Sum(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.sum(-1), x.abs().mean(-1)

    return BuiltWorkload(Sum(), (torch.randn(4, 200_000),))


def cancellation() -> BuiltWorkload:
    class Cancel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(256, 32)

        def forward(self, x: Any) -> Any:
            return self.first(x + 1000) - self.first(x + 999)

    return BuiltWorkload(Cancel(), (torch.randn(16, 256),))


def cumulative() -> BuiltWorkload:
    class Cumulative(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.cumsum(-1), torch.logcumsumexp(x, -1)

    return BuiltWorkload(Cumulative(), (torch.randn(8, 2048),))


def inverse() -> BuiltWorkload:
    class Solve(nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return torch.linalg.solve(a, b)

    return BuiltWorkload(Solve(), (torch.randn(4, 48, 48), torch.randn(4, 48, 3)))


def deep() -> BuiltWorkload:
    """Forty layers with residuals and rectifiers: rounding grows."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(40))
            for layer in self.layers:
                nn.init.orthogonal_(layer.weight, math.sqrt(2))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = torch.relu(layer(x)) + 0.1 * x
            return x

    return BuiltWorkload(Deep(), (torch.randn(16, 48),), loss=_sum_of_squares)


def dropout() -> BuiltWorkload:
    net = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64))
    return BuiltWorkload(net, (torch.randn(64, 64),), loss=_sum_of_squares, optimizer=_sgd)


def noise_layer() -> BuiltWorkload:
    """Draws with torch.randn, which float64 draws otherwise."""

    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            return y + 0.1 * torch.randn_like(y)

    return BuiltWorkload(Noise(), (torch.randn(64, 64),), loss=_sum_of_squares)


def grouped_conv() -> BuiltWorkload:
    net = nn.Sequential(nn.Conv2d(8, 16, 3, groups=4), nn.SiLU(), nn.ConvTranspose2d(16, 4, 3))
    net.append(nn.GroupNorm(2, 4))
    return BuiltWorkload(net, (torch.randn(4, 8, 10, 10),), loss=_sum_of_squares)


def pooled() -> BuiltWorkload:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2))
    return BuiltWorkload(net, (torch.randn(8, 3, 18, 18),), loss=_sum_of_squares)


def logs() -> BuiltWorkload:
    """Infinities that belong there."""

    class Logs(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.log(torch.relu(x)), torch.where(x > 0, x, -torch.inf)

    return BuiltWorkload(Logs(), (torch.randn(64, 64),))


def upsample() -> BuiltWorkload:
    net = nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(3, 4, 3))
    return BuiltWorkload(net, (torch.randn(2, 3, 12, 12),), loss=_sum_of_squares)


def constant_input() -> BuiltWorkload:
    """Equal numbers round equally: errors have one sign."""
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    return BuiltWorkload(
        net, (torch.full((64, 64), 0.1),), loss=lambda out: out.mean(), optimizer=_sgd
    )


def tiny_gradients() -> BuiltWorkload:
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.tiny = (nn.Parameter(torch.randn(64)) for _ in range(2))

        def forward(self, x: Any) -> Any:
            return x * self.large, x * self.tiny

    return BuiltWorkload(
        Tiny(), (torch.randn(8, 64),), loss=lambda out: out[0].sum() + 1e-15 * out[1].sum()
    )
