"""Programs with waste for every input: the marked line must be proven."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.values.adversary.program import has_outliers, values

SHAPE = (32, 64)
_BUFFER = torch.zeros(SHAPE)


def zeros_and_a_copy(other: bool) -> Any:
    results = []
    for step in range(3):
        buffer = torch.zeros(SHAPE)  # garbage
        buffer.copy_(values(other, step))
        results.append(buffer.sum())
    return results


def ones_and_a_copy(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.ones(SHAPE)  # garbage
        results.append(buffer.copy_(x).sum())
    return results


def zeros_and_an_out_argument(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE)  # garbage
        torch.mul(x, 3.0, out=buffer)
        results.append(buffer.sum())
    return results


def zeros_and_a_matrix_product(other: bool) -> Any:
    results, weight = [], torch.randn(64, 64)
    for step in range(3):
        x = values(other, step)
        product = torch.zeros(SHAPE)  # garbage
        torch.mm(x, weight, out=product)
        results.append(product.sum())
    return results


def zeros_and_a_batched_product(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step).reshape(4, 8, 64)
        product = torch.zeros(4, 8, 8)  # garbage
        torch.bmm(x, x.transpose(1, 2), out=product)
        results.append(product.sum())
    return results


def zeros_and_a_sum(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step).repeat(1, 16)
        total = torch.zeros(1024)  # garbage
        torch.sum(x, 0, out=total)
        results.append(total.sum())
    return results


def zeros_and_a_concatenation(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        both = torch.zeros(64, 64)  # garbage
        torch.cat([x, x], out=both)
        results.append(both.sum())
    return results


def zeros_within_one_statement(other: bool) -> Any:
    results = []
    for step in range(3):
        made = torch.zeros(SHAPE).copy_(values(other, step))  # garbage
        results.append(made.sum())
    return results


def zeros_as_an_out_argument(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        made = torch.add(x, x, out=torch.zeros(SHAPE))  # garbage
        results.append(made.sum())
    return results


def zeros_like_and_a_copy(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(x.shape)  # garbage
        buffer.copy_(x.sin())
        results.append(buffer.sum())
    return results


def work_in_between(other: bool) -> Any:
    results = []
    for step in range(3):
        buffer = torch.zeros(SHAPE)  # garbage
        x = values(other, step)
        if has_outliers(x):
            x = x.clamp(max=1.0)
        for _ in range(2):
            x = x * 0.5
        buffer.copy_(x)
        results.append(buffer.sum())
    return results


def saved_afterwards(other: bool) -> Any:
    results = []
    for step in range(3):
        buffer = torch.zeros(2, SHAPE[1])  # garbage
        buffer.copy_(values(other, step)[:2])
        results.append(sum(bytes(buffer.untyped_storage())))
    return results


def read_as_numpy_afterwards(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE)  # garbage
        buffer.copy_(x)
        results.append(float(buffer.numpy().sum()))
    return results


def without_gradients(other: bool) -> Any:
    results = []
    for step in range(3):
        with torch.no_grad():
            buffer = torch.zeros(SHAPE)  # garbage
            buffer.copy_(values(other, step))
            results.append(buffer.sum())
    return results


def in_a_branch(other: bool) -> Any:
    results = []
    for step in range(4):
        x = values(other, step)
        if step % 2 == 0:
            buffer = torch.zeros(SHAPE)  # garbage
            buffer.copy_(x)
            x = buffer
        results.append(x.sum())
    return results


def a_gradient_flows_through(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step).requires_grad_()
        buffer = torch.zeros(SHAPE)  # garbage
        buffer.copy_(x)
        results.append(torch.autograd.grad(buffer.square().sum(), x)[0].sum())
    return results


def halves(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        table = torch.zeros(SHAPE)  # garbage
        table[:16] = x[:16]
        table[16:] = x[16:] * 2
        results.append(table.sum())
    return results


def positional_encoding(other: bool) -> Any:
    results = []
    for step in range(3):
        angles = values(other, step)[:, :32]
        table = torch.zeros(SHAPE)  # garbage
        table[:, 0::2] = angles.sin()
        table[:, 1::2] = angles.cos()
        results.append(table.sum())
    return results


def rows_in_a_loop(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        table = torch.zeros(SHAPE)  # garbage
        for number in range(32):
            table[number] = x[number]
        results.append(table.sum())
    return results


def rows_of_a_tensor(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        table = torch.zeros(SHAPE)  # garbage
        for number in range(table.shape[0]):
            row = x[number] * 2
            table[number] = row
        results.append(table.sum())
    return results


def blocks_in_two_loops(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        table = torch.zeros(SHAPE)  # garbage
        for i in range(4):
            for j in range(2):
                table[8 * i : 8 * i + 8, 32 * j : 32 * j + 32] = x[:8, :32]
        results.append(table.sum())
    return results


def numbers_and_rows(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        table = torch.zeros(SHAPE)  # garbage
        table[0] = 1.0
        table[1:] = x[1:]
        results.append(table.sum())
    return results


def everything_by_a_slice(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        table = torch.zeros(SHAPE)  # garbage
        table[:] = x
        results.append(table.sum())
    return results


def zeroed_twice(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        total = torch.zeros(SHAPE)
        total.zero_()  # drop
        total.add_(x)
        total.add_(x)
        results.append(total.sum())
    return results


def zeroed_twice_and_added_to(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        total = torch.zeros(SHAPE)
        total.zero_()  # drop
        total.add_(x)
        results.append(total.sum())
    return results


def filled_twice_with_a_number(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        total = torch.full(SHAPE, 2.5)
        total.fill_(2.5)  # drop
        total.mul_(x)
        results.append(total.sum())
    return results


def filled_twice_with_a_variable(other: bool) -> Any:
    results = []
    for step in range(3):
        start = float(has_outliers(values(other, step)))
        total = torch.full(SHAPE, start)
        total.fill_(start)  # drop
        total.add_(values(other, step))
        results.append(total.sum())
    return results


def ones_filled_with_one(other: bool) -> Any:
    results = []
    for step in range(3):
        scale = torch.ones(SHAPE)
        scale.fill_(1)  # drop
        scale[0] = values(other, step)[0]
        results.append(scale.sum())
    return results


def a_buffer_zeroed_twice(other: bool) -> Any:
    results = []
    buffer = torch.randn(SHAPE)
    for step in range(3):
        buffer.zero_()
        buffer.zero_()  # drop
        buffer.add_(values(other, step))
        results.append(buffer.sum())
    return results


def a_buffer_zeroed_and_copied_over(other: bool) -> Any:
    results = []
    buffer = torch.randn(SHAPE)
    for step in range(3):
        x = values(other, step)
        buffer.zero_()  # drop
        buffer.copy_(x)
        results.append(buffer.sum())
    return results


def a_buffer_zeroed_and_computed_over(other: bool) -> Any:
    results = []
    buffer = torch.randn(SHAPE)
    for step in range(3):
        x = values(other, step)
        buffer.zero_()  # drop
        torch.add(x, 1.0, out=buffer)
        results.append(buffer.sum())
    return results


def a_buffer_with_arithmetic_in_between(other: bool) -> Any:
    results = []
    buffer = torch.randn(SHAPE)
    for step in range(3):
        x = values(other, step)
        buffer.zero_()  # drop
        y = x * 2 + 1
        buffer.copy_(y.relu())
        results.append(buffer.sum())
    return results


def a_global_buffer(other: bool) -> Any:
    results = []
    for step in range(3):
        raw = values(other, step)
        x = raw + 1
        _BUFFER.zero_()  # drop
        _BUFFER.copy_(x)
        results.append(_BUFFER.sum())
    return results


class _Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.randn(SHAPE))


def a_buffer_of_a_module(other: bool) -> Any:
    results, model = [], _Model()
    for step in range(3):
        raw = values(other, step)
        x = raw + 1
        model.state.zero_()  # drop
        model.state.copy_(x)
        results.append(model.state.sum())
    return results


class _Plain:
    def __init__(self) -> None:
        self.state = torch.randn(SHAPE)


def an_attribute(other: bool) -> Any:
    results, plain = [], _Plain()
    for step in range(3):
        raw = values(other, step)
        x = raw + 1
        plain.state.fill_(1.0)  # drop
        plain.state.copy_(x)
        results.append(plain.state.sum())
    return results


def integers(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step).to(torch.int64)
        buffer = torch.zeros(SHAPE, dtype=torch.int64)  # garbage
        buffer.copy_(x)
        results.append(buffer.sum())
    return results


def half_precision(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE, dtype=torch.bfloat16)  # garbage
        buffer.copy_(x)
        results.append(buffer.float().sum())
    return results


def multiplied_by_one(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step).mul(100).long()
        x.mul_(1)  # drop
        results.append(x.sum())
    return results


def multiplied_by_one_with_a_sign(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step).mul(100).long()
        x *= 1  # drop
        results.append(x.sum())
    return results


def a_threshold_of_outliers(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        if has_outliers(x):
            x = x / 50
        copied = torch.zeros(SHAPE)  # garbage
        copied.copy_(x)
        results.append(copied.exp().sum())
    return results


def positional_encoding_of_any_length(other: bool) -> Any:
    results = []
    for length in (32, 48, 64):
        angles = values(other)[0, :32].expand(length, 32)
        table = torch.zeros(length, 64)  # garbage
        table[:, 0::2] = angles.sin()
        table[:, 1::2] = angles.cos()
        results.append(table.sum())
    return results


def a_split_of_any_length(other: bool) -> Any:
    results = []
    for length in (32, 48, 64):
        x = values(other).repeat(2, 1)[:length]
        table = torch.zeros(length, 64)  # garbage
        table[:16] = x[:16]
        table[16:] = x[16:] * 2
        results.append(table.sum())
    return results
