"""Candidates whose wrong results are no tensors, or which hide behind infinities, types and laziness."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch


def _with_extra(module: Any, change: Any) -> Any:
    def call(x: Any) -> Any:
        y, extra = module(x)
        return y, change(extra)

    return call


def _late(right: Any, wrong: Any) -> Any:
    """Wrong when the blocks are timed."""
    calls = [0]

    def call(*args: Any) -> Any:
        calls[0] += 1
        return right(*args) if calls[0] <= 40 else wrong(*args)

    return call


def text_ends_otherwise(module: Any) -> Any:
    return _with_extra(module, lambda text: text[:100] + "x")


def number_is_off(module: Any) -> Any:
    return _with_extra(module, lambda number: number * 1.009)


def number_is_off_late(module: Any) -> Any:
    return _late(module, _with_extra(module, lambda number: number + 10))


def tokens_are_off_late(module: Any) -> Any:
    return _late(module, _with_extra(module, lambda tokens: [0 for _ in tokens]))


def tokens_of_the_first_call(module: Any) -> Any:
    first: list[Any] = []

    def keep(tokens: Any) -> Any:
        first.append(tokens)
        return first[0]

    return _with_extra(module, keep)


def array_is_zero(module: Any) -> Any:
    return _with_extra(module, lambda array: array * 0)


def set_is_off(module: Any) -> Any:
    return _with_extra(module, lambda _: {99})


def slots_are_zero(module: Any) -> Any:
    return _with_extra(module, lambda pair: type(pair)(pair.left * 0, pair.right * 0))


def deque_is_zero(module: Any) -> Any:
    return _with_extra(module, lambda items: deque([items[0] * 0]))


def iterator_is_zero(module: Any) -> Any:
    return _with_extra(module, lambda items: iter([item * 0 for item in items]))


def function_is_zero(module: Any) -> Any:
    return _with_extra(module, lambda function: type(function)(function.tensor * 0))


def infinity_changes_sign_late(module: Any) -> Any:
    return _late(module, lambda x: module(x).abs().where(module(x).isinf(), module(x)))


def infinity_becomes_nan_late(module: Any) -> Any:
    def wrong(x: Any) -> Any:
        y = module(x)
        return torch.where(torch.isinf(y), torch.full_like(y, float("nan")), y)

    return _late(module, wrong)


def parts_change_places(module: Any) -> Any:
    def change(nested: Any) -> Any:
        short, long = nested.unbind()
        return torch.nested.nested_tensor([torch.cat([short, torch.zeros(1, 16)]), long[:3]])

    return _with_extra(module, change)


def computes_when_unpacked(module: Any) -> Any:
    """A lazy container that has the name of a tuple."""

    def unpack(self: Any) -> Any:
        return iter(module(self.inputs))

    lazy: Any = type("tuple", (tuple,), {"__iter__": unpack})

    def call(x: Any) -> Any:
        result = lazy((None, None))
        result.inputs = x
        return result

    return call


def cached_by_version_counter(module: Any) -> Any:
    """Right for any input: the key counts how often inputs and weights were written."""
    kept: dict[Any, Any] = {}
    weight = next(module.parameters())

    def call(*args: Any) -> Any:
        key = tuple((tensor._version, tensor.shape) for tensor in (*args, weight))
        if key not in kept:
            kept.clear()
            kept[key] = module(*args)
        return kept[key].clone()

    return call
