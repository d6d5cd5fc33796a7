"""Arguments of replays: copies where a replay writes, other values of the same form elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchyard.worker.values.operators import operator_of  # noqa: E402
from torchyard.worker.values.proofs.trial_inputs import (  # noqa: E402
    EXTREME,
    OTHERS,
    OWN,
    RANDOM,
    CannotCopy,
    free_integers,
    integers_in,
    other_call,
    own_call,
    same_bits,
    size_to_copy,
)

pytestmark = pytest.mark.torch

aten = torch.ops.aten


def test_what_is_only_read_is_not_copied() -> None:
    one, two = torch.ones(3), torch.ones(3)
    call = own_call(aten.add.Tensor, (one, two), {"alpha": 2})
    assert call.args[0].data_ptr() == one.data_ptr()
    assert call.kwargs == {"alpha": 2}
    assert call.written == []


def test_what_is_written_is_a_copy_with_the_same_values() -> None:
    buffer = torch.arange(4.0)
    call = own_call(aten.add_.Tensor, (buffer, torch.ones(4)), {})
    call.func(*call.args)
    assert buffer.tolist() == [0, 1, 2, 3]
    assert call.written[0].tolist() == [1, 2, 3, 4]


def test_shared_memory_stays_shared_in_the_copy() -> None:
    base = torch.arange(10.0)
    call = own_call(aten.add_.Tensor, (base[0:4], base[4:8]), {})
    assert call.args[0].untyped_storage()._cdata == call.args[1].untyped_storage()._cdata
    assert call.args[1].data_ptr() - call.args[0].data_ptr() == 16
    call.func(*call.args)
    assert call.args[0].tolist() == [4, 6, 8, 10]
    assert base.tolist() == list(range(10))


def test_only_the_part_in_use_is_copied() -> None:
    huge = torch.zeros(1_000_000)
    view = huge[999_990:]
    assert size_to_copy(aten.zero_.default, (view,), {}, everything=True) <= 64
    call = own_call(aten.zero_.default, (view,), {})
    assert call.args[0].untyped_storage().nbytes() <= 64


def test_lists_of_tensors_are_copied_one_by_one() -> None:
    given = [torch.ones(2), torch.ones(3)]
    call = own_call(aten._foreach_zero_.default, (given,), {})
    call.func(*call.args)
    assert [tensor.sum().item() for tensor in given] == [2, 3]
    assert [tensor.sum().item() for tensor in call.written] == [0, 0]


@pytest.mark.parametrize("kind", OTHERS)
def test_other_values_keep_the_form(kind: str) -> None:
    own = torch.randn(6, 4).t()[::2]
    call = other_call(aten.mul.Tensor, (own, own), {}, kind)
    assert call.varied
    made = call.args[0]
    assert (made.shape, made.stride(), made.dtype) == (own.shape, own.stride(), own.dtype)
    assert not same_bits(made, own)
    assert torch.isfinite(made).all()
    assert made.data_ptr() == call.args[1].data_ptr()


def test_extreme_values_hold_zeros_of_both_signs_and_large_numbers() -> None:
    call = other_call(aten.mul.Tensor, (torch.randn(1000), 2.0), {}, EXTREME)
    made = call.args[0]
    zeros = made[made == 0]
    assert (torch.signbit(zeros)).any()
    assert (~torch.signbit(zeros)).any()
    assert made.abs().max() > 1e6
    assert (made < 0).any()


def test_other_values_are_the_same_every_time() -> None:
    own = torch.randn(50)
    for kind in OTHERS:
        one = other_call(aten.neg.default, (own,), {}, kind).args[0]
        two = other_call(aten.neg.default, (own,), {}, kind).args[0]
        assert same_bits(one, two)


def test_positions_stay_in_their_range_and_become_equal() -> None:
    index = torch.tensor([3, 1, 2])
    source = torch.randn(5)
    random = other_call(aten.index_select.default, (source, 0, index), {}, RANDOM)
    assert random.integers_kept
    assert random.args[2].tolist() == [3, 1, 2]
    extreme = other_call(aten.index_select.default, (source, 0, index), {}, EXTREME)
    assert not extreme.integers_kept
    assert extreme.args[2].tolist() == [1, 1, 1]


def test_integers_of_pointwise_operators_are_plain_numbers() -> None:
    assert free_integers(aten.add.Tensor, operator_of(aten.add.Tensor))
    assert free_integers(aten.copy_.default, operator_of(aten.copy_.default))
    assert not free_integers(aten.gather.default, operator_of(aten.gather.default))
    one = torch.arange(100)
    call = other_call(aten.add.Tensor, (one, one.clone()), {}, RANDOM)
    assert call.varied
    assert not call.integers_kept
    assert call.args[0].tolist() != call.args[1].tolist()


def test_masks_become_other_masks() -> None:
    mask = torch.zeros(100, dtype=torch.bool)
    call = other_call(aten.masked_fill_.Scalar, (torch.ones(100), mask, 0.0), {}, RANDOM)
    assert 10 < int(call.args[1].sum()) < 90


def test_samples_that_are_turned_into_positions_stay() -> None:
    samples = torch.rand(1, 1, 2)
    args = (torch.randn(1, 1, 8, 8), [2, 2], [4, 4], samples)
    call = other_call(aten.fractional_max_pool2d.default, args, {}, EXTREME)
    assert same_bits(call.args[3], samples)


def test_nothing_to_vary_is_no_other_input() -> None:
    assert not other_call(aten.zeros.default, ([3],), {}, RANDOM).varied


def test_tensors_of_no_plain_memory_are_refused() -> None:
    for bad in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(CannotCopy):
            own_call(aten.neg.default, (bad,), {})
    conjugated = torch.tensor([1 + 1j]).conj()
    with pytest.raises(CannotCopy):
        other_call(aten.neg.default, (conjugated,), {}, RANDOM)


def test_subclasses_are_refused_and_parameters_are_not() -> None:
    kind: Any = type("Mine", (torch.Tensor,), {})
    with pytest.raises(CannotCopy, match="Mine"):
        own_call(aten.neg.default, (torch.ones(2).as_subclass(kind),), {})
    parameter = torch.nn.Parameter(torch.ones(2))
    made = own_call(aten.neg.default, (parameter,), {}).args[0]
    assert not made.requires_grad


def test_integers_are_distinguished_from_the_rest() -> None:
    assert integers_in((torch.arange(2),), {})
    assert not integers_in((torch.ones(2), torch.ones(2, dtype=torch.bool)), {})
    assert OWN not in OTHERS
