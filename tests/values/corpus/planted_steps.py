"""Planted waste: recomputation in every step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def _train(model: nn.Module, forward: object, steps: int = 4) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = forward()  # type: ignore[operator]
        loss.backward()
        optimizer.step()


def causal_bias_made_in_each_step() -> None:
    projection = nn.Linear(32, 32)

    def forward() -> Tensor:
        hidden = projection(torch.randn(2, 96, 32))
        # waste: unchanged across steps, aten::triu
        bias = torch.full((96, 96), -1e4).triu(1)
        scores = hidden @ hidden.transpose(1, 2) + bias
        return (scores.softmax(-1) @ hidden).pow(2).mean()

    _train(projection, forward)


def positions_encoded_in_each_step() -> None:
    projection = nn.Linear(64, 64)

    def forward() -> Tensor:
        place = torch.arange(128.0)[:, None]
        frequency = torch.exp(torch.arange(0, 64, 2) * (-math.log(1e4) / 64))
        angle = place * frequency
        # waste: unchanged across steps, aten::cat
        table = torch.cat([angle.sin(), angle.cos()], dim=1)
        return projection(torch.randn(4, 128, 64) + table).pow(2).mean()

    _train(projection, forward)


def frozen_table_normalised_in_each_step() -> None:
    prototypes = torch.randn(256, 64)
    encoder = nn.Linear(32, 64)

    def forward() -> Tensor:
        # waste: unchanged across steps, aten::sub
        centred = prototypes - prototypes.mean(0)
        return (encoder(torch.randn(16, 32)) @ centred.t()).logsumexp(1).mean()

    _train(encoder, forward)


def frozen_backbone_on_the_same_images() -> None:
    backbone = nn.Conv2d(3, 16, 3, padding=1).requires_grad_(requires_grad=False)
    head = nn.Linear(16, 4)
    images = torch.rand(8, 3, 16, 16)

    def forward() -> Tensor:
        # waste: unchanged across steps, aten::convolution
        features = backbone(images)
        pooled = F.dropout(features, 0.5).amax((2, 3))
        return head(pooled).logsumexp(1).mean()

    _train(head, forward)


def distances_to_a_fixed_grid() -> None:
    offset = nn.Parameter(torch.zeros(3))
    grid = torch.rand(64, 3)
    points = torch.rand(96, 3)

    def forward() -> Tensor:
        # waste: unchanged across steps, aten::_euclidean_dist
        distance = torch.cdist(points, grid)
        return (distance * torch.rand(96, 64)).mean() * offset.sum() + offset.pow(2).sum()

    module = nn.Module()
    module.register_parameter("offset", offset)
    _train(module, forward)
