"""Planted waste: redundant writes and dead initializations."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def counters_reset_though_still_zero() -> None:
    counters = torch.zeros(64, 256)
    for _ in range(3):
        batch = torch.randn(32, 256)
        # waste: redundant write, aten::zero_
        counters.zero_()
        assert torch.isfinite(batch @ counters.t()).all()


def weights_loaded_for_each_request() -> None:
    model = nn.Linear(128, 64)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for _ in range(4):
            for name, parameter in model.named_parameters():
                # waste: redundant write, aten::copy_
                parameter.copy_(saved[name])
            model(torch.randn(8, 128))


def scaled_in_place_by_one() -> None:
    scale = 1.0
    for _ in range(3):
        image = torch.rand(3, 64, 64)
        # waste: redundant write, aten::mul_
        image.mul_(scale)
        image.sub_(0.5)


def padding_rows_zeroed_again() -> None:
    batch = torch.zeros(128, 64)
    lengths = [40, 50, 60]
    for length in lengths:
        batch[:length] = torch.randn(length, 64)
        # waste: redundant write, aten::fill_
        batch[64:] = 0
        batch.sum()


def weight_decay_of_nothing() -> None:
    model = nn.Linear(64, 64, bias=False)
    rate, decay = 0.1, 0.0
    for _ in range(3):
        loss = model(torch.randn(16, 64)).pow(2).mean()
        (gradient,) = torch.autograd.grad(loss, [model.weight])
        with torch.no_grad():
            # waste: redundant write, aten::mul_
            model.weight.mul_(1 - rate * decay)
            model.weight.sub_(gradient, alpha=rate)


def gradients_clipped_far_above_their_norm() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(32, 64)), torch.randn(32, 8)).backward()
        # waste: redundant write, aten::_foreach_mul_
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        optimizer.step()


def zeros_before_an_out_argument() -> None:
    left, right = torch.randn(64, 64), torch.randn(64, 64)
    for _ in range(3):
        # waste: dead initialisation, aten::zeros
        product = torch.zeros(64, 64)
        torch.mm(left, right, out=product)
        left = product / product.norm()


def buffer_cleared_before_each_copy() -> None:
    staging = torch.empty(32, 128)
    for _ in range(4):
        batch = torch.randn(32, 128)
        # waste: dead initialisation, aten::zero_
        staging.zero_()
        staging.copy_(batch)
        staging.sum()


def outputs_collected_in_zeros() -> None:
    cell = nn.GRUCell(32, 64)
    sequence = torch.randn(20, 8, 32)
    with torch.no_grad():
        for _ in range(2):
            hidden = torch.randn(8, 64)
            # waste: dead initialisation, aten::zeros
            outputs = torch.zeros(20, 8, 64)
            for step in range(20):
                hidden = cell(sequence[step], hidden)
                outputs[step] = hidden
            outputs.mean(0)


def columns_interleaved_into_zeros() -> None:
    for length in (64, 80, 96):
        position = torch.randn(length, 1)
        frequency = torch.exp(torch.arange(0, 128, 2) * (-math.log(10000.0) / 128))
        # waste: dead initialisation, aten::zeros
        table = torch.zeros(length, 128)
        table[:, 0::2] = torch.sin(position * frequency)
        table[:, 1::2] = torch.cos(position * frequency)
        table.sum()


def gradients_zeroed_not_dropped() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        loss = F.mse_loss(model(torch.randn(16, 64)), torch.randn(16, 32))
        # waste: dead initialisation, aten::zero_
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()


def gradients_zeroed_by_hand() -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    for _ in range(4):
        (torch.randn(16, 64) @ weight).pow(2).mean().backward()
        assert weight.grad is not None
        with torch.no_grad():
            weight -= 0.01 * weight.grad
        # waste: dead initialisation, aten::zero_
        weight.grad.zero_()


def sum_of_one_thing() -> None:
    for _ in range(3):
        # waste: dead initialisation, aten::zeros
        total = torch.zeros(64, 64)
        total += torch.randn(64, 64).tanh()
        total.exp()


def many_gradients_zeroed_at_once() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    for _ in range(4):
        model(torch.randn(16, 64)).pow(2).mean().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), gradients, alpha=-0.01)
        # waste: dead initialisation, aten::_foreach_zero_
        torch._foreach_zero_(gradients)
