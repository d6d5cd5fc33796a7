"""Clean programs: work that looks wasted, but that the program cannot leave out."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

STEPS = 5


def encoder_layers_of_torch() -> None:
    """Multi-head attention of torch selects queries, keys and values out of one projection."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        lengths = torch.randint(16, 33, (8,))
        padding = torch.arange(32)[None, :] >= lengths[:, None]
        hidden = model(torch.randn(8, 32, 64), src_key_padding_mask=padding)
        optimizer.zero_grad()
        hidden.masked_fill(padding[:, :, None], 0).pow(2).mean().backward()
        optimizer.step()


def attention_of_torch_with_gradients() -> None:
    attention = nn.MultiheadAttention(64, 4, batch_first=True)
    optimizer = torch.optim.SGD(attention.parameters(), lr=0.01)
    for _ in range(STEPS):
        x = torch.randn(4, 48, 64)
        optimizer.zero_grad()
        attention(x, x, x, need_weights=False)[0].pow(2).mean().backward()
        optimizer.step()


def causal_attention_with_dropout() -> None:
    project = nn.Linear(64, 192)
    optimizer = torch.optim.AdamW(project.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(2, 160, 64)
        q, k, v = (part.view(2, 160, 4, 16).transpose(1, 2) for part in project(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        y.pow(2).mean().backward()
        optimizer.step()


def causal_attention_without_batches() -> None:
    project = nn.Linear(64, 192)
    with torch.no_grad():
        for _ in range(STEPS):
            q, k, v = project(torch.randn(2, 160, 64)).chunk(3, -1)
            F.scaled_dot_product_attention(q, k, v, is_causal=True).sum()


def clipping_as_a_safeguard() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(64, 64)), torch.randn(64, 8)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def clipping_by_hand() -> None:
    model = nn.Linear(128, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(64, 128)), torch.randn(64, 64)).backward()
        weight: Any = model.weight.grad
        weight.mul_((1.0 / weight.norm()).clamp(max=1.0))
        optimizer.step()


def divergence_of_a_variational_encoder() -> None:
    encoder = nn.Linear(96, 128)
    optimizer = torch.optim.Adam(encoder.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        mean, spread = encoder(torch.randn(96, 96)).chunk(2, 1)
        spread = (9 * spread).clamp(-2, 2)
        (-0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()).backward()
        optimizer.step()


def iterations_that_converge() -> None:
    matrix, vector = torch.rand(200, 200).softmax(0), torch.rand(200, 40)
    for _ in range(60):
        vector = matrix @ vector
        vector = (vector * 64).round() / 64


def masks_that_are_equal_by_the_data() -> None:
    for _ in range(STEPS):
        x = torch.randn(200, 200)
        removed = torch.rand(200, 200) < 0.1
        x[removed] = float("nan")
        torch.where(x.isnan(), x.nanmean(0), x).sum()


def a_cell_without_an_initial_state() -> None:
    cell, head = nn.GRUCell(32, 64), nn.Linear(64, 4)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
    for _ in range(STEPS):
        optimizer.zero_grad()
        state = None
        for x in torch.randn(2, 128, 32).unbind(0):
            state = cell(x, state)
        head(state).pow(2).mean().backward()
        optimizer.step()


def classes_of_which_one_is_usual() -> None:
    with torch.no_grad():
        for _ in range(STEPS):
            scores = torch.randn(4, 6, 96, 96)
            scores[:, 2] += 9.0
            torch.bincount(scores.argmax(1).flatten())


def routed_to_a_few_experts() -> None:
    experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
    with torch.no_grad():
        for _ in range(STEPS):
            x = torch.randn(512, 32)
            chosen = torch.randint(0, 4, (512, 1))
            y = torch.zeros_like(x)
            for number, expert in enumerate(experts):
                y = y + torch.where(chosen == number, expert(x), 0.0)
            y.sum()


def a_backup_of_an_array() -> None:
    x = torch.randn(100, 100)
    for _ in range(STEPS):
        backup = x.clone()
        x.numpy()[:] *= 1.25
        (x - backup).norm()


def a_backup_before_a_function_of_each_element() -> None:
    x = torch.randn(100, 100)
    for _ in range(STEPS):
        backup = x.clone()
        x.apply_(lambda number: 0.5 * number + 1)
        (x - backup).norm()


def a_backup_before_a_thread_writes() -> None:
    x = torch.randn(100, 100)
    for _ in range(STEPS):
        backup = x.clone()
        thread = threading.Thread(target=lambda: x.add_(1))
        thread.start()
        thread.join()
        (x - backup).norm()


def bytes_that_a_program_overwrites() -> None:
    raw = bytearray(40_000)
    x = torch.frombuffer(raw, dtype=torch.float32)
    for step in range(STEPS):
        backup = x.clone()
        raw[:] = bytes([step]) * 40_000
        torch.dot(x, backup)


def shifted_class_indices() -> None:
    table = torch.randn(2000, 48)
    with torch.no_grad():
        for _ in range(STEPS):
            pixels = torch.randint(0, 2000, (256, 256))
            moved = (pixels > 1000).long().roll(1, 0)
            table.gather(0, moved[:, :48]).sum()


def sums_over_groups() -> None:
    weights = torch.rand(8000)
    for _ in range(STEPS):
        groups = torch.randint(0, 500, (8000,))
        total = torch.zeros(500).index_add_(0, groups, weights)
        weights = weights / total[groups]


def a_layer_of_ones_that_learns() -> None:
    scale = nn.Parameter(torch.ones(256, 64))
    optimizer = torch.optim.SGD([scale], lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (torch.randn(64, 256) @ scale).pow(2).mean().backward()
        optimizer.step()


def distances_between_adjacent_frames() -> None:
    def gap(one: Tensor, other: Tensor) -> Tensor:
        return (one - other).norm(dim=-1)

    frames = [torch.randn(200, 64) for _ in range(STEPS)]
    for one, other in pairwise(frames):
        gap(one, other).mean()


def checks_of_a_distribution() -> None:
    policy = nn.Linear(16, 4)
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        distribution = torch.distributions.Categorical(logits=policy(torch.randn(4096, 16)))
        actions = distribution.sample()
        (-distribution.log_prob(actions) * torch.randn(4096)).mean().backward()
        optimizer.step()
