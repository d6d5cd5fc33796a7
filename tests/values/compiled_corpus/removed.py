"""Waste in the source that Inductor removes: the buffer is never written, so there is nothing to report."""

# ruff: noqa: T201
# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import torch
from torch import Tensor

from tests.values.compiled_corpus.planted import SIZE, _data
from tests.values.corpus.program import program_of


def zeros_that_are_added_to() -> None:
    """Zeros as the start of a sum."""

    @torch.compile
    def f(x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        out += x.sin()
        return out

    for _ in range(3):
        print(float(f(_data()).sum()))


def second_fill() -> None:
    """A buffer that is filled twice."""

    @torch.compile
    def f(x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        out.fill_(2)
        out.copy_(x.cos())
        return out

    for _ in range(3):
        print(float(f(_data()).sum()))


def constant_operand() -> None:
    """A constant that becomes a number in the kernel."""

    @torch.compile
    def f(x: Tensor) -> Tensor:
        return x * torch.full((SIZE, SIZE), 0.5) + x.exp()

    for _ in range(3):
        print(float(f(_data()).sum()))


def unused_result() -> None:
    """A result that nothing reads."""

    @torch.compile
    def f(x: Tensor) -> Tensor:
        _unused = torch.zeros_like(x) + 1
        return x.tanh()

    for _ in range(3):
        print(float(f(_data()).sum()))


def copy_before_an_operator() -> None:
    """A copy that is fused into its reader."""

    @torch.compile
    def f(x: Tensor) -> Tensor:
        return x.clone().sin()

    for _ in range(3):
        print(float(f(_data()).sum()))


REMOVED = tuple(
    program_of(function)
    for function in (
        zeros_that_are_added_to,
        second_fill,
        constant_operand,
        unused_result,
        copy_before_an_operator,
    )
)
