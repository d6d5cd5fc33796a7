"""Planted waste: single and frequent values, heavy types, structure, approximate patterns."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def auxiliary_loss_with_a_weight_of_zero() -> None:
    model = nn.Linear(64, 64)
    weight = 0.0
    for _ in range(3):
        hidden = model(torch.randn(32, 64))
        # waste: single zero, aten::mul
        smoothness = hidden.detach().abs() * weight
        (hidden.pow(2) + smoothness).mean().backward()


def neurons_that_are_all_dead() -> None:
    layer = nn.Linear(64, 128)
    nn.init.constant_(layer.bias, -50.0)
    for _ in range(3):
        # waste: single zero, aten::relu
        hidden = F.relu(layer(torch.randn(64, 64)))
        hidden.sum()


def mean_taken_from_itself() -> None:
    for _ in range(3):
        image = torch.rand(64, 64)
        # waste: single zero, aten::sub
        residual = image - image
        residual.abs().mean()


def softmax_over_one_class() -> None:
    head = nn.Linear(64, 1)
    for _ in range(3):
        # waste: single value, aten::_softmax
        probability = head(torch.randn(2048, 64)).softmax(-1)
        probability.log().mean()


def constant_made_from_ones() -> None:
    for _ in range(3):
        # waste: single value, aten::mul
        prior = torch.ones(64, 64) * 0.5
        (prior * torch.randn(64, 64)).sum()


def saturated_gate() -> None:
    gate = nn.Linear(32, 64)
    nn.init.constant_(gate.bias, 200.0)
    with torch.no_grad():
        for _ in range(3):
            hidden = torch.randn(64, 64)
            # waste: single value, aten::sigmoid
            opened = torch.sigmoid(gate(torch.randn(64, 32)))
            (hidden * opened).sum()


def one_hot_multiplied_with_a_table() -> None:
    table = torch.randn(512, 32)
    for _ in range(3):
        tokens = torch.randint(0, 512, (64,))
        # waste: frequent values, aten::_to_copy
        choice = F.one_hot(tokens, 512).float()
        (choice @ table).sum()


def diagonal_matrix_multiplied() -> None:
    for _ in range(3):
        scale = torch.rand(256)
        # waste: frequent values, aten::diag_embed
        matrix = torch.diag_embed(scale)
        (matrix @ torch.randn(256, 16)).sum()


def mostly_padding() -> None:
    embedding = nn.Embedding(100, 64)
    with torch.no_grad():
        for _ in range(3):
            tokens = torch.randint(1, 100, (16, 128))
            keep = torch.arange(128) < 6
            # waste: frequent values, aten::mul
            hidden = embedding(tokens) * keep[None, :, None]
            hidden.sum(1)


def graph_as_a_dense_matrix() -> None:
    nodes = 256
    features = torch.randn(nodes, 16)
    for _ in range(3):
        adjacency = torch.zeros(nodes, nodes)
        adjacency[torch.randint(0, nodes, (700,)), torch.randint(0, nodes, (700,))] = 1.0
        degree = adjacency.sum(1, keepdim=True) + 1
        # waste: frequent values, aten::mul
        spread = torch.nn.functional.dropout(adjacency, 0.5) / degree
        features = spread @ features


def mask_kept_as_floats() -> None:
    layers = [nn.Linear(32, 32) for _ in range(3)]
    for _ in range(3):
        hidden = torch.randn(8, 64, 32)
        # waste: heavy type, aten::_to_copy
        mask = (torch.rand(8, 64, 32) > 0.3).float()
        for layer in layers:
            hidden = layer(hidden) * mask


def causal_mask_of_ones() -> None:
    lengths = [96, 112, 128]
    for length in lengths:
        # waste: heavy type, aten::tril
        mask = torch.tril(torch.ones(length, length))
        for _ in range(3):
            scores = torch.randn(2, length, length)
            scores.masked_fill(mask == 0, float("-inf")).softmax(-1)


def labels_in_eight_bytes() -> None:
    for _ in range(3):
        pixels = torch.randint(0, 20, (128, 128))
        # waste: heavy type, aten::add
        shifted = pixels + 1
        (shifted == 5).sum()
        (shifted == 7).sum()


def quantised_weights_as_floats() -> None:
    for _ in range(3):
        weight = torch.randn(128, 64).clamp(-4, 4)
        # waste: heavy type, aten::round
        levels = torch.round(weight * 16)
        error = weight - levels / 16
        (levels.abs().sum() + error.sum()).sqrt()


def coordinates_in_double_precision() -> None:
    pitch = torch.full((64,), 0.125, dtype=torch.float64)
    for _ in range(3):
        cells = torch.randint(0, 4096, (64, 64))
        # waste: heavy type, aten::mul
        place = cells * pitch
        (place.sin() + place.cos()).sum()


def levels_as_wide_as_weights() -> None:
    edges = torch.linspace(-2, 2, 100)
    for _ in range(3):
        weight = torch.randn(64, 128)
        # waste: heavy type, aten::div
        level = torch.bucketize(weight, edges) / 32.0
        (level.exp() + level.log1p()).sum()


def batch_of_equal_masks() -> None:
    for _ in range(3):
        bias = torch.randn(64, 64)
        # waste: structured, aten::repeat
        biases = bias.repeat(8, 1, 1)
        (torch.randn(8, 64, 64) + biases).softmax(-1)


def positions_embedded_for_each_row() -> None:
    tokens = nn.Embedding(50, 64)
    places = nn.Embedding(64, 64)
    with torch.no_grad():
        for _ in range(3):
            batch = torch.randint(0, 50, (8, 64))
            position = torch.arange(64).expand(8, 64)
            # waste: structured, aten::embedding
            hidden = tokens(batch) + places(position)
            hidden.sum()


def computed_after_the_expand() -> None:
    for _ in range(3):
        decay = torch.rand(1, 1, 64).expand(16, 32, 64)
        # waste: structured, aten::neg
        weight = torch.exp(-decay)
        (torch.randn(16, 32, 64) * weight).sum()


def average_repeated_over_the_features() -> None:
    for _ in range(3):
        hidden = torch.randn(64, 128)
        # waste: structured, aten::repeat
        mean = hidden.mean(-1, keepdim=True).repeat(1, 128)
        (hidden - mean).pow(2).sum()


def places_counted_one_by_one() -> None:
    for length in (4096, 5000, 6000):
        keep = torch.rand(length) < 2
        # waste: structured, aten::nonzero
        kept = keep.nonzero().squeeze(1)
        torch.randn(length)[kept].sum()


def order_of_what_is_sorted() -> None:
    for _ in range(3):
        times = torch.rand(8192).cumsum(0)
        # waste: structured, aten::sort
        order = times.argsort()
        times[order].diff().sum()


def temperatures_that_hardly_differ() -> None:
    for _ in range(3):
        # waste: approximate, aten::add
        field = 300 + 0.001 * torch.randn(64, 64)
        field.sqrt().sum()


def rows_that_hardly_differ() -> None:
    for _ in range(3):
        profile = torch.randn(1, 256)
        # waste: approximate, aten::add
        field = profile + 1e-5 * torch.randn(64, 256)
        field.sum()
