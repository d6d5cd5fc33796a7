"""New input values of the same shapes: valid, reproducible, and in place."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


def test_floats_keep_sign_zeros_and_range_and_their_place() -> None:
    import torch

    from torchyard.worker.bench.model import InputDraws

    x = torch.randn(300, 300)
    x[0, 0], x[0, 1] = 0.0, float("-inf")
    before, pointer = x.clone(), x.data_ptr()
    draws = InputDraws([x])
    draws.apply(5, "floats")
    assert x.data_ptr() == pointer
    assert not torch.equal(x, before)
    assert torch.equal(x.sign(), before.sign())
    assert bool((x.abs() <= before.abs()).all())
    other = x.clone()
    draws.apply(6, "floats")
    assert not torch.equal(x, other)
    draws.apply(5, "floats")
    assert torch.equal(x, other)
    draws.apply(0, "floats")
    assert torch.equal(x, before)


def test_all_precisions_see_the_same_numbers() -> None:
    import torch

    from torchyard.worker.bench.model import InputDraws

    x = torch.randn(70000)
    half = x.bfloat16()
    for tensor in (x, half):
        InputDraws([tensor]).apply(3, "all")
    assert torch.equal(half, x.bfloat16())


def test_integers_are_rotated_unless_they_are_sorted() -> None:
    import torch

    from torchyard.worker.bench.model import InputDraws

    tokens = torch.randint(0, 9, (4, 16))
    offsets, mask = torch.tensor([0, 2, 2, 7]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    before = [tensor.clone() for tensor in (tokens, offsets, mask)]
    draws = InputDraws([tokens, offsets, mask])
    draws.apply(2, "all")
    assert not torch.equal(tokens, before[0])
    assert torch.equal(tokens.flatten().sort().values, before[0].flatten().sort().values)
    assert torch.equal(offsets, before[1])
    assert torch.equal(mask, before[2])
    draws.apply(2, "floats")
    assert torch.equal(tokens, before[0])


def test_unwritable_inputs_are_unchanged() -> None:
    import torch

    from torchyard.worker.bench.model import InputDraws

    wide = torch.ones(1).expand(8)
    draws = InputDraws([wide, torch.empty(0), torch.tensor(3)])
    assert draws.varied("all") == []
    draws.apply(1, "all")
    assert torch.equal(wide, torch.ones(8))
