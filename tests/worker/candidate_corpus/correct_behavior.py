"""Correct candidates with unusual behavior. Each takes the module that `bench` passes."""

# ruff: noqa: PLW0108 - candidates are wrappers on purpose

from __future__ import annotations

import copy
from typing import Any

import torch


def same(module: Any) -> Any:
    return module


def wrapped(module: Any) -> Any:
    return lambda *args, **kwargs: module(*args, **kwargs)


def compiled(module: Any) -> Any:
    """`torch.compile` sets an attribute of the module."""
    return torch.compile(module, backend="eager")


def rewritten(module: Any) -> Any:
    """Another order of additions."""

    def call(x: Any) -> Any:
        weight, bias = module.inner.weight, module.inner.bias
        half = x.shape[1] // 2
        return torch.tanh(
            x[:, :half] @ weight[:, :half].t() + x[:, half:] @ weight[:, half:].t() + bias
        )

    return call


def rewrites_in_another_order(module: Any) -> Any:
    """The buffer that eager code rewrites with equal values gets others within rounding."""

    def call(x: Any) -> Any:
        left, right = module.inner.weight.split(8, dim=1)
        module.table.copy_(left @ left.t() + right @ right.t())
        return x @ module.table

    return call


def caches_constants(module: Any) -> Any:
    """A table that depends on the shape alone."""
    known: dict[Any, Any] = {}

    def call(x: Any) -> Any:
        if x.shape not in known:
            known[x.shape] = torch.zeros(x.shape)
        return module(x) + known[x.shape]

    return call


def fresh_copies(module: Any) -> Any:
    return lambda x: module(x.clone()).clone()


def documented_static_output(module: Any) -> Any:
    """Like a recorded graph: the next call overwrites the result, and it says so."""
    buffers: dict[Any, Any] = {}

    def call(x: Any) -> Any:
        found = module(x)
        return buffers.setdefault(found.shape, torch.empty_like(found)).copy_(found)

    call.overwrites_results = True  # type: ignore[attr-defined]
    return call


def documented_frozen(module: Any) -> Any:
    frozen = copy.deepcopy(module)

    def call(x: Any) -> Any:
        return frozen(x)

    call.frozen_weights = True  # type: ignore[attr-defined]
    return call


def refuses_other_batches(module: Any) -> Any:
    """Says that it has one batch size instead of being wrong."""

    def call(x: Any) -> Any:
        if x.shape[0] != 8:
            raise ValueError("made for a batch of 8")
        return module(x)

    return call


def scoped_settings(module: Any) -> Any:
    """Changes process state and puts it back itself."""

    def call(x: Any) -> Any:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad() if not torch.is_grad_enabled() else torch.enable_grad():
                return module(x)
        finally:
            torch.set_num_threads(threads)

    return call


def rebuilds_dataclass(module: Any) -> Any:
    def call(x: Any) -> Any:
        found = module(x)
        return type(found)(found.left + 0, found.right + 0)

    return call


def uses_generator(module: Any) -> Any:
    """A generator of its own, whose numbers do not reach the result."""
    generator = torch.Generator().manual_seed(1)

    def call(x: Any) -> Any:
        torch.rand(1, generator=generator)
        return module(x)

    return call


def lowers_to_double(module: Any) -> Any:
    """More accurate than eager code."""

    def call(x: Any) -> Any:
        weight, bias = module.inner.weight.double(), module.inner.bias.double()
        return torch.tanh(x.double() @ weight.t() + bias).float()

    return call


def steps_in_place(module: Any) -> Any:
    def call(x: Any) -> Any:
        x.mul_(0.5)
        return x.clone().add_(1)

    return call


def counts_like_eager(module: Any) -> Any:
    def call(x: Any) -> Any:
        module.calls += 1
        return x * module.calls

    return call
