"""Planted waste: duplicates, needless copies, guards that never fire."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def model_called_again_for_the_accuracy() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        batch, labels = torch.randn(64, 64), torch.randint(0, 10, (64,))
        loss = F.cross_entropy(model(batch), labels)
        with torch.no_grad():
            # waste: duplicate, aten::addmm
            guess = model(batch).argmax(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        (guess == labels).sum()


def mask_built_by_every_layer() -> None:
    hidden = torch.randn(2, 128, 32)
    layers = [nn.Linear(32, 32) for _ in range(4)]
    length = hidden.shape[1]
    with torch.no_grad():
        for layer in layers:
            rows = torch.arange(length)
            # waste: duplicate, aten::sub
            distance = (rows[:, None] - rows[None, :]).float().neg()
            scores = hidden @ hidden.transpose(1, 2) + distance
            hidden = layer(scores.softmax(-1) @ hidden)


def multiplied_by_a_scale_of_one() -> None:
    scale = torch.ones(())
    for _ in range(3):
        hidden = torch.randn(64, 128).tanh()
        # waste: duplicate, aten::mul
        scaled = hidden * scale
        scaled.sum()


def padded_by_nothing() -> None:
    for size in (32, 32, 32):
        image = torch.rand(4, 3, size, size).sqrt()
        missing = 32 - size
        # waste: duplicate, aten::constant_pad_nd
        padded = F.pad(image, (0, missing, 0, missing))
        F.avg_pool2d(padded, 2)


def squared_by_multiplying_with_itself() -> None:
    projection = nn.Linear(64, 128)
    for _ in range(3):
        hidden = projection(torch.randn(64, 64))
        # waste: duplicate, aten::mul
        energy = hidden * hidden
        energy.sum(1).sqrt().mean().backward()


def softmax_computed_twice() -> None:
    for _ in range(3):
        logits = torch.randn(64, 128) * 3
        chosen = logits.softmax(-1).argmax(-1)
        # waste: duplicate, aten::_softmax
        confidence = logits.softmax(-1).amax(-1)
        assert chosen.shape == confidence.shape


def resized_to_its_own_size() -> None:
    for _ in range(3):
        image = torch.rand(2, 3, 64, 64).sqrt()
        # waste: duplicate, aten::upsample_nearest2d
        resized = F.interpolate(image, size=(64, 64), mode="nearest")
        resized.mean()


def cloned_for_no_one() -> None:
    model = nn.Linear(64, 64)
    with torch.no_grad():
        for _ in range(3):
            hidden = model(torch.randn(128, 64))
            # waste: duplicate, aten::clone
            kept = hidden.clone()
            assert torch.isfinite(kept.exp() + hidden).all()


def copied_to_be_safe() -> None:
    table = torch.randn(256, 64)

    def lookup(rows: Tensor) -> Tensor:
        # waste: duplicate, aten::_to_copy
        private = table.to(torch.float32, copy=True)
        return private[rows]

    for _ in range(3):
        lookup(torch.randint(0, 256, (32,)))


def concatenated_with_nothing() -> None:
    for _ in range(3):
        extra = torch.empty(0, 64)
        tokens = torch.randn(128, 64).tanh()
        # waste: duplicate, aten::cat
        sequence = torch.cat([extra, tokens])
        sequence.sum(0)


def numbers_cleaned_that_were_clean() -> None:
    layers = [nn.Linear(64, 64) for _ in range(4)]
    hidden = torch.randn(128, 64)
    for layer in layers:
        # waste: guard that never fires, aten::nan_to_num
        hidden = torch.nan_to_num(layer(hidden).tanh())


def padding_masked_where_there_is_none() -> None:
    for _ in range(4):
        scores = torch.randn(4, 64, 64)
        padding = torch.zeros(4, 1, 64, dtype=torch.bool)
        # waste: guard that never fires, aten::masked_fill
        scores = scores.masked_fill(padding, -1e9)
        scores.softmax(-1)


def probabilities_clamped_that_fit() -> None:
    for _ in range(4):
        probability = torch.randn(64, 128).mul(0.5).sigmoid()
        # waste: guard that never fires, aten::clamp
        safe = probability.clamp(1e-6, 1 - 1e-6)
        safe.log().mean()


def division_guarded_against_zero() -> None:
    for _ in range(3):
        count = torch.rand(64, 128) + 1
        # waste: guard that never fires, aten::where
        count = torch.where(count > 0, count, torch.ones_like(count))
        (torch.randn(64, 128) / count).sum()


def negative_squares_clamped() -> None:
    layers = [nn.Linear(64, 64) for _ in range(3)]
    hidden = torch.randn(128, 64)
    for layer in layers:
        energy = layer(hidden).square()
        # waste: guard that never fires, aten::relu
        hidden = F.relu(energy)
