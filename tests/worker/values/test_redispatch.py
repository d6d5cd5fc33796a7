"""Redispatch of operators with `--deep`: to the kernel that torch would choose."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchyard.worker.values.redispatch import key_for  # noqa: E402 -- needs torch

pytestmark = pytest.mark.torch

MULTIPLY = torch.ops.aten.mul.Tensor
ON_THE_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def test_tensors_of_the_cpu_go_to_its_kernel() -> None:
    key = key_for(MULTIPLY, (torch.ones(3), torch.tensor(2.0)), {})
    assert key == ON_THE_CPU


@pytest.mark.parametrize("number_first", [True, False])
def test_a_number_on_the_cpu_does_not_choose_the_kernel(number_first: bool) -> None:
    """`pow(2, x)` has its 2 as a tensor of the CPU, in front. The meta device stands for a GPU."""
    number, elsewhere = torch.tensor(2.0), torch.ones(3, device="meta")
    arguments = (number, elsewhere) if number_first else (elsewhere, number)
    assert key_for(MULTIPLY, arguments, {}) is None


def test_tensors_in_lists_are_considered() -> None:
    join = torch.ops.aten.cat.default
    assert key_for(join, ([torch.ones(3), torch.ones(3)],), {}) == ON_THE_CPU
    assert key_for(join, ([torch.ones(3), torch.ones(3, device="meta")],), {}) is None


@pytest.mark.parametrize("first", [2.0, torch.ones(3).to_sparse()])
def test_operators_without_a_kernel_are_called_normally(first: object) -> None:
    assert key_for(MULTIPLY, (first, torch.ones(3)), {}) is None


def test_factory_functions_go_to_the_requested_device() -> None:
    make = torch.ops.aten.zeros.default
    assert key_for(make, ([3],), {}) == ON_THE_CPU
    assert key_for(make, ([3],), {"device": torch.device("cpu")}) == ON_THE_CPU
    assert key_for(make, ([3],), {"device": torch.device("meta")}) is None


@pytest.mark.parametrize(
    "unfinished",
    [
        torch._efficientzerotensor(3),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch._neg_view(torch.ones(3)),
    ],
    ids=["zeros", "conjugate", "negative"],
)
def test_views_that_are_not_computed_yet_are_left_to_torch(unfinished: Any) -> None:
    assert key_for(MULTIPLY, (unfinished, torch.ones(3)), {}) is None
    assert key_for(MULTIPLY, (torch.ones(3), unfinished), {}) is None
