"""Planted waste: single and frequent values, heavy types, structure, nearly so."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def auxiliary_loss_with_a_weight_of_zero() -> None:
    model = nn.Linear(64, 64)
    weight = 0.0
    for _ in range(3):
        hidden = model(torch.randn(32, 64))
        smoothness = hidden.detach().abs() * weight  # waste: single zero, aten::mul
        (hidden.pow(2) + smoothness).mean().backward()


def neurons_that_are_all_dead() -> None:
    layer = nn.Linear(64, 128)
    nn.init.constant_(layer.bias, -50.0)
    for _ in range(3):
        hidden = F.relu(layer(torch.randn(64, 64)))  # waste: single zero, aten::relu
        hidden.sum()


def mean_taken_from_itself() -> None:
    for _ in range(3):
        image = torch.rand(64, 64)
        residual = image - image  # waste: single zero, aten::sub
        residual.abs().mean()


def softmax_over_one_class() -> None:
    head = nn.Linear(64, 1)
    for _ in range(3):
        probability = head(torch.randn(2048, 64)).softmax(-1)  # waste: single value, aten::_softmax
        probability.log().mean()


def constant_made_from_ones() -> None:
    for _ in range(3):
        prior = torch.ones(64, 64) * 0.5  # waste: single value, aten::mul
        (prior * torch.randn(64, 64)).sum()


def saturated_gate() -> None:
    gate = nn.Linear(32, 64)
    nn.init.constant_(gate.bias, 200.0)
    with torch.no_grad():
        for _ in range(3):
            hidden = torch.randn(64, 64)
            opened = torch.sigmoid(gate(torch.randn(64, 32)))  # waste: single value, aten::sigmoid
            (hidden * opened).sum()


def one_hot_multiplied_with_a_table() -> None:
    table = torch.randn(512, 32)
    for _ in range(3):
        tokens = torch.randint(0, 512, (64,))
        choice = F.one_hot(tokens, 512).float()  # waste: frequent values, aten::_to_copy
        (choice @ table).sum()


def diagonal_matrix_multiplied() -> None:
    for _ in range(3):
        scale = torch.rand(256)
        matrix = torch.diag_embed(scale)  # waste: frequent values, aten::diag_embed
        (matrix @ torch.randn(256, 16)).sum()


def mostly_padding() -> None:
    embedding = nn.Embedding(100, 64)
    with torch.no_grad():
        for _ in range(3):
            tokens = torch.randint(1, 100, (16, 128))
            keep = torch.arange(128) < 6
            hidden = embedding(tokens) * keep[None, :, None]  # waste: frequent values, aten::mul
            hidden.sum(1)


def graph_as_a_dense_matrix() -> None:
    nodes = 256
    features = torch.randn(nodes, 16)
    for _ in range(3):
        adjacency = torch.zeros(nodes, nodes)
        adjacency[torch.randint(0, nodes, (700,)), torch.randint(0, nodes, (700,))] = 1.0
        degree = adjacency.sum(1, keepdim=True) + 1
        spread = torch.nn.functional.dropout(adjacency, 0.5) / degree  # waste: frequent values, aten::mul
        features = spread @ features


def mask_kept_as_floats() -> None:
    layers = [nn.Linear(32, 32) for _ in range(3)]
    for _ in range(3):
        hidden = torch.randn(8, 64, 32)
        mask = (torch.rand(8, 64, 32) > 0.3).float()  # waste: heavy type, aten::_to_copy
        for layer in layers:
            hidden = layer(hidden) * mask


def causal_mask_of_ones() -> None:
    lengths = [96, 112, 128]
    for length in lengths:
        mask = torch.tril(torch.ones(length, length))  # waste: heavy type, aten::tril
        for _ in range(3):
            scores = torch.randn(2, length, length)
            scores.masked_fill(mask == 0, float("-inf")).softmax(-1)


def labels_in_eight_bytes() -> None:
    for _ in range(3):
        pixels = torch.randint(0, 20, (128, 128))
        shifted = pixels + 1  # waste: heavy type, aten::add
        (shifted == 5).sum()
        (shifted == 7).sum()


def quantised_weights_as_floats() -> None:
    for _ in range(3):
        weight = torch.randn(128, 64).clamp(-4, 4)
        levels = torch.round(weight * 16)  # waste: heavy type, aten::round
        error = weight - levels / 16
        (levels.abs().sum() + error.sum()).sqrt()


def coordinates_in_double_precision() -> None:
    pitch = torch.full((64,), 0.125, dtype=torch.float64)
    for _ in range(3):
        cells = torch.randint(0, 4096, (64, 64))
        place = cells * pitch  # waste: heavy type, aten::mul
        (place.sin() + place.cos()).sum()


def levels_as_wide_as_weights() -> None:
    edges = torch.linspace(-2, 2, 100)
    for _ in range(3):
        weight = torch.randn(64, 128)
        level = torch.bucketize(weight, edges) / 32.0  # waste: heavy type, aten::div
        (level.exp() + level.log1p()).sum()


def batch_of_equal_masks() -> None:
    for _ in range(3):
        bias = torch.randn(64, 64)
        biases = bias.repeat(8, 1, 1)  # waste: structured, aten::repeat
        (torch.randn(8, 64, 64) + biases).softmax(-1)


def positions_embedded_for_each_row() -> None:
    tokens = nn.Embedding(50, 64)
    places = nn.Embedding(64, 64)
    with torch.no_grad():
        for _ in range(3):
            batch = torch.randint(0, 50, (8, 64))
            position = torch.arange(64).expand(8, 64)
            hidden = tokens(batch) + places(position)  # waste: structured, aten::embedding
            hidden.sum()


def computed_after_the_expand() -> None:
    for _ in range(3):
        decay = torch.rand(1, 1, 64).expand(16, 32, 64)
        weight = torch.exp(-decay)  # waste: structured, aten::neg
        (torch.randn(16, 32, 64) * weight).sum()


def average_repeated_over_the_features() -> None:
    for _ in range(3):
        hidden = torch.randn(64, 128)
        mean = hidden.mean(-1, keepdim=True).repeat(1, 128)  # waste: structured, aten::repeat
        (hidden - mean).pow(2).sum()


def places_counted_one_by_one() -> None:
    for length in (4096, 5000, 6000):
        keep = torch.rand(length) < 2
        kept = keep.nonzero().squeeze(1)  # waste: structured, aten::nonzero
        torch.randn(length)[kept].sum()


def order_of_what_is_sorted() -> None:
    for _ in range(3):
        times = torch.rand(8192).cumsum(0)
        order = times.argsort()  # waste: structured, aten::sort
        times[order].diff().sum()


def temperatures_that_hardly_differ() -> None:
    for _ in range(3):
        field = 300 + 0.001 * torch.randn(64, 64)  # waste: approximate, aten::add
        field.sqrt().sum()


def rows_that_hardly_differ() -> None:
    for _ in range(3):
        profile = torch.randn(1, 256)
        field = profile + 1e-5 * torch.randn(64, 256)  # waste: approximate, aten::add
        field.sum()
