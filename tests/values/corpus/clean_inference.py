"""Clean programs: inference, data, metrics, and operators whose waste was fixed in torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


@torch.no_grad()
def decoding_with_a_cache() -> None:
    width, heads = 64, 4
    tokens, packed, out = (
        nn.Embedding(100, width),
        nn.Linear(width, 3 * width),
        nn.Linear(width, 100),
    )
    keys = torch.empty(8, heads, 0, width // heads)
    values = torch.empty(8, heads, 0, width // heads)
    word = torch.randint(0, 100, (8, 1))
    for _ in range(12):
        q, k, v = (
            part.view(8, 1, heads, -1).transpose(1, 2)
            for part in packed(tokens(word)).chunk(3, dim=-1)
        )
        keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        mixed = F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).reshape(8, 1, width)
        word = out(mixed).argmax(-1)


@torch.no_grad()
def decoding_with_a_static_cache() -> None:
    cache = torch.zeros(4, 4, 64, 32)
    for place in range(24):
        cache[:, :, place] = torch.randn(4, 4, 32)
        query = torch.randn(4, 4, 1, 32)
        seen = torch.arange(64) <= place
        F.scaled_dot_product_attention(query, cache, cache, attn_mask=seen[None, :])


def augmentation() -> None:
    for _ in range(3):
        image = torch.randint(0, 256, (8, 3, 48, 48), dtype=torch.uint8).float() / 255
        if torch.rand(()) < 2:
            image = image.flip(-1)
        image = (image + 0.2 * torch.randn_like(image)).clamp(0, 1)
        top, left = 4, 6
        crop = image[:, :, top : top + 32, left : left + 32]
        mean = torch.tensor([0.48, 0.45, 0.4])[None, :, None, None]
        F.interpolate((crop - mean) / 0.25, size=(40, 40), mode="bilinear", antialias=True)


def metrics() -> None:
    confusion = torch.zeros(10, 10, dtype=torch.int64)
    for _ in range(4):
        logits, labels = torch.randn(1024, 10), torch.randint(0, 10, (1024,))
        guess = logits.argmax(1)
        confusion += torch.bincount(labels * 10 + guess, minlength=100).view(10, 10)
        (guess == labels).float().mean()
        top = logits.topk(3, dim=1).indices
        (top == labels[:, None]).any(1).float().mean()
    confusion.diag() / confusion.sum(1)


def interpolation_of_a_curve() -> None:
    for _ in range(3):
        x = torch.rand(4096).sort().values
        y = torch.sin(6 * x)
        query = torch.rand(8192)
        right = torch.searchsorted(x, query).clamp(1, 4095)
        left = right - 1
        start = x[left]
        weight = (query - start) / (x[right] - start)
        torch.lerp(y[left], y[right], weight)


@torch.no_grad()
def beam_search() -> None:
    width, vocabulary, head = 8, 512, nn.Linear(64, 512)
    states, scores = torch.randn(width, 64), torch.zeros(width, 1)
    for _ in range(10):
        joint = scores + head(states).log_softmax(-1)
        best, place = joint.view(-1).topk(width)
        beam, word = place // vocabulary, place % vocabulary
        states = torch.tanh(states[beam] + head.weight[word])
        scores = best[:, None]


def clustering_by_k_means() -> None:
    points = torch.randn(512, 16)
    centres = points[torch.randperm(512)[:8]].clone()
    for _ in range(8):
        nearest = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = sums / torch.bincount(nearest, minlength=8).clamp(min=1)[:, None]


def power_iteration() -> None:
    matrix = torch.randn(128, 128)
    vector = torch.randn(128)
    for _ in range(10):
        vector = matrix @ vector
        vector = vector / vector.norm()


def solving_the_heat_equation() -> None:
    field = torch.rand(96, 96)
    for _ in range(10):
        padded = F.pad(field[None, None], (1, 1, 1, 1), mode="replicate")[0, 0]
        around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
        field = field + 0.1 * (around - 4 * field)


def spectra_of_signals() -> None:
    window = torch.hann_window(256)
    for _ in range(3):
        spectrum = torch.stft(torch.randn(4, 4096), 256, 128, window=window, return_complex=True)
        (spectrum.abs().pow(2) + 1e-6).log().mean(-1)


def convolution_without_a_bias() -> None:
    convolution = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    with torch.no_grad():
        for _ in range(3):
            convolution(torch.randn(2, 8, 32, 32))


def replication_padding() -> None:
    layer = nn.Sequential(nn.ReplicationPad2d(2), nn.Conv2d(4, 4, 5), nn.ReplicationPad1d(1))
    for _ in range(3):
        image = torch.randn(4, 4, 32, 32, requires_grad=True)
        layer[1](layer[0](image)).pow(2).mean().backward()


def embedding_with_padding() -> None:
    embedding = nn.Embedding(100, 64, padding_idx=0)
    with torch.no_grad():
        for _ in range(3):
            words = torch.randint(1, 100, (16, 32))
            words[:, 20:] = 0
            embedding(words).sum(1)


def losses_of_all_kinds() -> None:
    for _ in range(3):
        guess = torch.randn(128, 64, requires_grad=True)
        wanted = torch.randn(128, 64)
        for loss in (
            F.mse_loss(guess, wanted),
            F.l1_loss(guess, wanted),
            F.smooth_l1_loss(guess, wanted),
            F.huber_loss(guess, wanted, delta=0.5),
            F.kl_div(guess.log_softmax(-1), wanted.softmax(-1), reduction="batchmean"),
            F.soft_margin_loss(guess, wanted.sign()),
        ):
            loss.backward()
            guess.grad = None


def ensemble_on_one_batch() -> None:
    models = [nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)) for _ in range(3)]
    with torch.no_grad():
        for _ in range(3):
            batch = torch.randn(64, 64)
            votes: list[Tensor] = [model(batch).softmax(-1) for model in models]
            torch.stack(votes).mean(0).argmax(-1)
