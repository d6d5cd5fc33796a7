"""Planted waste: gradients that are zero nearly everywhere."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def few_words_of_a_large_vocabulary() -> None:
    embedding = nn.Embedding(2000, 32)
    head = nn.Linear(32, 2)
    optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        words = torch.randint(0, 2000, (8, 10))
        # waste: sparse gradient, aten::embedding_dense_backward
        hidden = embedding(words)
        loss = F.cross_entropy(head(hidden.mean(1)), torch.randint(0, 2, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def rows_of_a_parameter_by_index() -> None:
    users = nn.Parameter(torch.randn(1000, 32))
    optimizer = torch.optim.SGD([users], lr=0.1)
    for _ in range(3):
        index = torch.randint(0, 1000, (40,))
        # waste: sparse gradient, aten::index_put
        chosen = users[index]
        optimizer.zero_grad()
        chosen.pow(2).mean().backward()
        optimizer.step()


def bags_of_few_words() -> None:
    bag = nn.EmbeddingBag(2000, 32, mode="sum")
    optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
    for _ in range(3):
        words = torch.randint(0, 2000, (8, 10))
        # waste: sparse gradient, aten::_embedding_bag_backward
        hidden = bag(words)
        optimizer.zero_grad()
        hidden.pow(2).mean().backward()
        optimizer.step()


def queries_keys_and_values_selected() -> None:
    projection = nn.Linear(32, 96)
    for _ in range(3):
        packed = projection(torch.randn(4, 64, 32)).view(4, 64, 3, 32).permute(2, 0, 1, 3)
        # waste: sparse gradient, aten::select_backward
        q, k, v = packed[0], packed[1], packed[2]
        F.scaled_dot_product_attention(q, k, v).mean().backward()


def time_steps_selected_one_by_one() -> None:
    encoder, cell = nn.Linear(16, 32), nn.GRUCell(32, 32)
    for _ in range(3):
        features = encoder(torch.randn(8, 24, 16))
        hidden = torch.zeros(8, 32)
        for step in range(24):
            # waste: sparse gradient, aten::select_backward
            hidden = cell(features[:, step], hidden)
        hidden.pow(2).mean().backward()


def gate_and_value_sliced() -> None:
    projection = nn.Linear(32, 128)
    for _ in range(3):
        both = projection(torch.randn(64, 32))
        # waste: sparse gradient, aten::slice_backward
        value, gate = both[:, :64], both[:, 64:]
        (value * gate.sigmoid()).pow(2).mean().backward()
