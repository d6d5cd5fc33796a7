"""Recipes: operators stored as JSON and recreated with everything that affects their cost."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchyard.worker.values.pricing.recipes import (  # noqa: E402
    MOST_KEPT_BYTES,
    MOST_MASK_CHARACTERS,
    NoRecipe,
    fill_recipe,
    make_again,
    recipe_of,
)
from torchyard.worker.values.proofs.trial_inputs import same_bits  # noqa: E402

pytestmark = pytest.mark.torch

aten = torch.ops.aten
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def again(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Through JSON and back."""
    return make_again(json.loads(json.dumps(recipe_of(func, args, kwargs))))


def test_form_and_numbers_stay_and_values_lie_in_their_range() -> None:
    own = torch.rand(6, 4).t()[::2] + 5
    made = again(aten.add.Tensor, own, own, alpha=2.5)
    assert made.func is aten.add.Tensor
    assert made.kwargs == {"alpha": 2.5}
    tensor = made.args[0]
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (own.shape, own.stride(), own.dtype)
    assert tensor.min() >= 5
    assert tensor.max() <= 6
    assert made().shape == own.shape


@pytest.mark.parametrize(
    "dtype",
    [*FLOATS, torch.complex64, torch.int64, torch.int32, torch.uint8, torch.bool],
)
def test_every_kind_of_number(dtype: Any) -> None:
    own = (torch.randn(100) * 10).abs().to(dtype)
    made = again(aten.clone.default, own)
    assert made.args[0].dtype is dtype
    assert made().shape == own.shape


def test_few_integers_are_kept_and_many_stay_in_range() -> None:
    offsets = torch.tensor([0, 3, 7, 20])
    made = again(aten.clone.default, offsets)
    assert same_bits(made.args[0], offsets)
    many = torch.randint(5, 9, (MOST_KEPT_BYTES,))
    recipe = recipe_of(aten.clone.default, (many,), {})
    assert len(json.dumps(recipe)) < 10_000
    values = make_again(recipe).args[0]
    assert (int(values.min()), int(values.max())) == (5, 8)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(7,), (1000, 333), (0, 4)])
def test_masks_are_kept_bit_for_bit(share: float, shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape) < share
    assert torch.equal(again(aten.clone.default, mask).args[0], mask)
    assert torch.equal(again(aten.clone.default, mask.t()).args[0], mask.t())


def test_a_uniform_mask_is_stored_in_constant_size() -> None:
    mask = torch.zeros(3000, 3000, dtype=torch.bool)
    recipe = recipe_of(aten.masked_fill.Scalar, (torch.ones(3000, 3000), mask, 0.0), {})
    assert len(json.dumps(recipe)) < 20_000
    assert not make_again(recipe).args[1].any()


def test_of_a_large_random_mask_the_share_is_kept() -> None:
    torch.manual_seed(3)
    mask = torch.rand(24 * MOST_MASK_CHARACTERS) < 0.1
    recipe = recipe_of(aten.clone.default, (mask,), {})
    assert len(json.dumps(recipe)) < 20_000
    assert 0.07 < float(make_again(recipe).args[0].float().mean()) < 0.13


@pytest.mark.parametrize("special", [0.0, 1e-40, math.nan, math.inf])
def test_special_values_are_kept_in_proportion(special: float) -> None:
    own = torch.randn(1 << 20)
    own[: 1 << 19] = special
    made = again(aten.clone.default, own).args[0]
    same = torch.isnan(made) if math.isnan(special) else made == special
    assert 0.4 < float(same.float().mean()) < 0.6


def test_the_order_of_positions_is_kept() -> None:
    made = again(aten.clone.default, torch.arange(1 << 20)).args[0]
    steps = made[1:] - made[:-1]
    assert float((steps == 1).float().mean()) > 0.9


def test_positions_are_usable() -> None:
    index = torch.randint(0, 10, (5000,))
    made = again(aten.index_select.default, torch.randn(10, 4), 0, index)
    assert made().shape == (5000, 4)


def test_arguments_that_are_no_tensors() -> None:
    made = again(
        aten.empty_like.default,
        torch.ones(2),
        dtype=torch.float16,
        layout=torch.strided,
        device=torch.device("cpu"),
        memory_format=torch.contiguous_format,
    )
    assert made().dtype is torch.float16
    made = again(aten.clamp.default, torch.ones(2), -math.inf, None)
    assert made.args[1] == -math.inf
    made = again(aten.cat.default, [torch.ones(2), torch.ones(3)], 0)
    assert made().shape == (5,)
    made = again(aten.normal_.default, torch.ones(2), 0, 1, generator=torch.Generator())
    assert made.kwargs["generator"] is None


def test_expanded_empty_and_zero_dimensional_tensors() -> None:
    for own in (torch.ones(3, 1).expand(3, 5), torch.empty(0, 3), torch.tensor(2.0)):
        made = again(aten.clone.default, own)
        assert made.args[0].shape == own.shape
        made()
    index = torch.arange(3)[:, None].expand(3, 5)
    assert again(aten.clone.default, index).args[0].shape == (3, 5)


def test_what_cannot_be_written_down_says_so() -> None:
    with pytest.raises(NoRecipe, match="no strided memory"):
        recipe_of(aten.clone.default, (torch.eye(2).to_sparse(),), {})
    with pytest.raises(NoRecipe, match="object"):
        recipe_of(aten.clone.default, (object(),), {})
    with pytest.raises(NoRecipe, match="no aten::does_not_exist"):
        make_again({"operator": "aten::does_not_exist", "overload": "x", "args": [], "kwargs": {}})


def test_the_recipe_of_a_fill() -> None:
    made = make_again(fill_recipe((3, 4), torch.float64))
    made.args[0].fill_(7)
    assert made().eq(0).all()
    assert made.args[0].shape == (3, 4)
