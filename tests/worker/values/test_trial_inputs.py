"""Bitwise equality, and where poison values are written."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchyard.worker.values.proofs.trial_inputs import (  # noqa: E402
    bits_of,
    flat_results,
    poisons_for,
    put,
    same_bits,
    same_results,
)

pytestmark = pytest.mark.torch

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64]


def test_nan_equals_itself_and_minus_zero_is_not_zero() -> None:
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_form_counts_too() -> None:
    plain = torch.arange(6.0).reshape(2, 3)
    assert not same_bits(plain, plain.reshape(3, 2))
    assert not same_bits(plain, plain.double())
    assert not same_bits(plain, plain.t().contiguous().t())
    assert same_bits(plain.t(), plain.clone().t())


def test_one_bit_is_seen_anywhere() -> None:
    for dtype in FLOATS + INTEGERS + [torch.bool, torch.uint8]:
        one = torch.zeros(1000, dtype=dtype)
        other = one.clone()
        assert same_bits(one, other)
        bits_of(other).reshape(-1)[-1] ^= 1
        assert not same_bits(one, other), dtype


def test_lazily_conjugated_numbers() -> None:
    value = torch.tensor([1 + 2j, 3 - 1j])
    assert same_bits(value.conj(), value.conj())
    assert not same_bits(value.conj(), value)
    assert not same_bits(value.conj(), torch.tensor([1 + 2j, 3 - 2j]).conj())


def test_sparse_results() -> None:
    one = torch.eye(3).to_sparse()
    assert same_bits(one, torch.eye(3).to_sparse())
    assert not same_bits(one, (2 * torch.eye(3)).to_sparse())


def test_results_of_any_form() -> None:
    some = (torch.ones(2), [torch.zeros(3), 4], None)
    assert same_results(flat_results(some), flat_results(some))
    assert not same_results(flat_results(some), flat_results((torch.ones(2),)))
    assert not same_results([4], [5])
    assert not same_results([torch.ones(1)], [1.0])


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_have_three_different_poisons(dtype: Any) -> None:
    left = []
    for poison in poisons_for(dtype).values():
        tensor = torch.zeros(64, dtype=dtype)
        assert put(poison, [tensor])
        left.append(tensor)
    assert len(left) == 3
    for number, one in enumerate(left):
        assert not any(same_bits(one, other) for other in left[number + 1 :])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize("filled", [0, 1])
def test_masks_get_values_that_masks_have(dtype: Any, filled: int) -> None:
    assert len(poisons_for(dtype)) == 2
    for poison in poisons_for(dtype).values():
        tensor = torch.full((10,), filled).to(dtype)
        assert put(poison, [tensor])
        assert set(tensor.int().tolist()) <= {0, 1}


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_left_alone(dtype: Any) -> None:
    assert poisons_for(dtype) == {}


def test_a_poison_that_is_there_already_is_no_test() -> None:
    poison = poisons_for(torch.float32)["NaN"]
    assert not put(poison, [torch.full((5,), float("nan"))])
    assert not put(poison, [torch.empty(0)])


def test_poisons_are_the_same_every_time_and_take_no_random_numbers() -> None:
    before = torch.get_rng_state()
    drawn = []
    for _ in range(2):
        tensor = torch.zeros(100)
        put(poisons_for(torch.float32)["random bits"], [tensor])
        drawn.append(tensor)
    assert same_bits(*drawn)
    assert torch.equal(before, torch.get_rng_state())


def test_strided_memory_is_poisoned_in_place() -> None:
    base = torch.zeros(4, 6)
    for poison in poisons_for(torch.float32).values():
        base.zero_()
        assert put(poison, [base[:, ::2]])
        assert (base[:, 1::2] == 0).all()
        assert not (base[:, ::2] == 0).any()
