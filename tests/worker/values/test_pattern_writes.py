"""Redundant writes and dead initializations: edge cases and negatives."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.worker.values.pattern_profiles import (  # noqa: E402
    names,
    only,
    patterns,
    profile_patterns,
    profile_steps,
)

pytestmark = pytest.mark.torch

REDUNDANT, DEAD = "redundant write", "dead initialisation"
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeroing_zeros_is_redundant_in_every_dtype(dtype: Any) -> None:
    def program() -> None:
        memory = torch.zeros(8192, dtype=dtype)
        memory.sum()
        memory.zero_()

    found = only(profile_patterns(program), REDUNDANT)
    assert found.operator == "aten::zero_"
    assert found.bytes_wasted == found.bytes_written == 8192 * dtype.itemsize
    assert found.dtype == str(dtype).removeprefix("torch.")
    assert found.evidence["zero_share"] == 1.0


def test_undefined_memory_is_never_already_zero() -> None:
    def program() -> None:
        for _ in range(3):
            memory = torch.empty(1 << 20)  # fresh pages of the system are zero
            memory.zero_()
            resized = torch.empty(0).resize_(1 << 18)
            resized.fill_(0)

    assert profile_patterns(program) == []


@pytest.mark.parametrize(
    "pieces",
    [
        [slice(0, 8), slice(8, 16)],
        [slice(0, 8), slice(12, 16)],
        [slice(0, 16, 2), slice(1, 16, 2)],
        [slice(4, 8), slice(2, 8)],
        [(slice(None), slice(0, 100)), (slice(None), slice(100, 4096))],
    ],
    ids=["adjacent", "with a gap", "strided", "overlapping", "columns"],
)
def test_the_rest_of_memory_that_is_written_in_pieces_is_undefined(pieces: list[Any]) -> None:
    first, second = pieces

    def program() -> None:
        memory = torch.empty(16, 4096)
        with torch.utils._python_dispatch._disable_current_modes():
            memory.zero_()  # as fresh pages of the system are
        memory[first] = 1.0
        memory[second].zero_()

    assert profile_patterns(program) == []


def test_a_piece_that_was_written_before_is_compared() -> None:
    def again(piece: Any) -> list[tuple[str, str]]:
        def program() -> None:
            memory = torch.empty(16, 4096)
            for _ in range(2):
                memory[piece].zero_()
            memory[0].sum()

        return names(profile_patterns(program))

    assert (REDUNDANT, "zero_") in again(slice(2, 6))
    assert (REDUNDANT, "zero_") in again((slice(None), slice(0, 1024)))


def test_memory_that_is_written_in_pieces_is_defined_when_they_cover_it() -> None:
    def program() -> None:
        memory = torch.empty(16, 4096)
        for row in (0, 15, *range(8, 15), *range(1, 8)):
            memory[row].zero_()
        memory.sum()
        memory.zero_()

    (finding,) = [one for one in profile_patterns(program) if one.pattern == REDUNDANT]
    assert finding.bytes_wasted == 16 * 4096 * 4


def test_memory_that_first_appears_in_a_write_may_be_uninitialized() -> None:
    memory = torch.zeros(1 << 14)

    def once() -> None:
        memory.zero_()

    def twice() -> None:
        memory.zero_()
        memory.zero_()

    assert profile_patterns(once) == []
    assert only(profile_patterns(twice), REDUNDANT).count == 1


def test_bits_are_compared_not_values() -> None:
    def negative_zero() -> None:
        memory = torch.zeros(4096)
        memory.sum()
        memory.neg_()  # -0.0 equals 0.0, and has other bits

    def not_a_number() -> None:
        memory = torch.full((4096,), math.nan)
        memory.sum()
        memory.fill_(math.nan)  # differs from itself, and has the same bits

    assert profile_patterns(negative_zero) == []
    assert only(profile_patterns(not_a_number), REDUNDANT).operator == "aten::fill_"


def test_views_are_not_writes() -> None:
    def program() -> None:
        memory = torch.randn(64, 64)
        memory.t().reshape(64, 64)
        memory.view(-1)[5:].unsqueeze(0).expand(3, -1)
        memory.detach()
        memory[None].squeeze(0)

    assert patterns(profile_patterns(program)) <= {"structured"}


def test_a_part_of_a_storage_is_compared_by_elements() -> None:
    def rows(changed: int) -> list[tuple[str, str]]:
        def program() -> None:
            memory = torch.randn(256, 64)
            part = memory[64:]
            same = part.clone()
            same[:changed] += 1
            part.copy_(same)

        return names(profile_patterns(program))

    assert (REDUNDANT, "copy_") in rows(0)
    assert (REDUNDANT, "copy_") in rows(1)  # one row of 192
    assert (REDUNDANT, "copy_") not in rows(4)


def test_writing_a_few_chosen_elements_is_no_waste() -> None:
    def program() -> None:
        cache = torch.randn(2, 4096)
        for place in range(4):
            cache[1:].index_copy_(1, torch.tensor([place]), torch.randn(1, 1))
            cache[1:].scatter_(1, torch.tensor([[place]]), 3.0)
            cache[1:].view(-1)[torch.tensor([place])] = float(place)

    assert profile_patterns(program) == []


def test_choosing_elements_and_changing_none_is_redundant() -> None:
    def program() -> None:
        memory = torch.randn(4096)
        memory[::7] = 0
        for _ in range(3):
            memory.masked_fill_(memory == 0, 0.0)

    found = profile_patterns(program)
    assert names(found) == [(REDUNDANT, "masked_fill_")]
    assert found[0].count == 3


def test_a_fresh_accumulator_is_no_waste() -> None:
    def program() -> None:
        for _ in range(3):
            average = torch.zeros(4096)
            average.mul_(0.9)
            average.add_(torch.randn(4096), alpha=0.1)
            average.mul_(0.9).add_(torch.randn(4096), alpha=0.1)

    assert profile_patterns(program) == []


def test_optimisers_of_all_kinds_are_clean() -> None:
    def train(kind: Any, **options: Any) -> None:
        model = nn.Linear(64, 64)
        optimizer = kind(model.parameters(), lr=0.01, **options)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(16, 64)).tanh().mean().backward()
            optimizer.step()

    for foreach in (False, True):
        assert profile_patterns(lambda: train(torch.optim.SGD, momentum=0.9, foreach=foreach)) == []  # noqa: B023
        assert profile_patterns(lambda: train(torch.optim.AdamW, foreach=foreach)) == []  # noqa: B023
        assert profile_patterns(lambda: train(torch.optim.RMSprop, foreach=foreach)) == []  # noqa: B023
    assert profile_patterns(lambda: train(torch.optim.Adam, fused=True)) == []


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("foreach", [False, True])
def test_set_to_none_is_found_with_every_optimiser(deep: bool, foreach: bool) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach)
        for _ in range(3):
            loss = model(torch.randn(8, 64)).square().mean()
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()

    found = only(profile_patterns(program, deep=deep), DEAD)
    assert found.detail.startswith("gradient zeroed only to be added to")
    assert found.count == 4  # two weights; the first step has no gradient yet
    assert found.bytes_wasted == 4 * 2 * 64 * 64 * 4
    assert found.evidence["added_by"]["operator"] == "aten::add_"


def test_the_sign_of_zero_does_not_save_a_fill() -> None:
    def program() -> None:
        addend = torch.randn(4096)
        addend[::2] = -0.0
        for _ in range(2):
            total = torch.zeros(4096)
            total += addend  # +0.0 where the addend has -0.0
            total.exp()

    assert only(profile_patterns(program), DEAD).detail.startswith("zeroed only to be added to")


def test_zeros_that_are_needed() -> None:
    def added_to_twice() -> None:
        total = torch.zeros(4096)
        for _ in range(3):
            total += torch.randn(4096)

    def read_before() -> None:
        memory = torch.zeros(4096)
        memory.sum()
        memory.copy_(torch.randn(4096))

    def scaled() -> None:
        total = torch.zeros(4096)
        total.add_(torch.randn(4096), alpha=0.5)
        total.exp()

    def scattered() -> None:
        total = torch.zeros(4096)
        total.index_add_(0, torch.arange(4096), torch.randn(4096))

    def partly() -> None:
        memory = torch.zeros(64, 128)
        memory[:50] = torch.randn(50, 128)
        memory.sum()

    def overlapping() -> None:
        memory = torch.zeros(64, 128)
        memory[:40] = torch.randn(40, 128)
        memory[20:44] = torch.randn(24, 128)  # as many elements as there are, and not all of them
        memory.sum()

    def read_in_between() -> None:
        memory = torch.zeros(64, 128)
        memory[:32] = torch.randn(32, 128)
        memory.sum()
        memory[32:] = torch.randn(32, 128)

    for program in (
        added_to_twice,
        read_before,
        scaled,
        scattered,
        partly,
        overlapping,
        read_in_between,
    ):
        assert DEAD not in patterns(profile_patterns(program)), program.__name__


def test_reading_the_same_memory_while_overwriting_it_is_a_read() -> None:
    def program() -> None:
        memory = torch.zeros(64, 128)
        memory[:1] = torch.randn(1, 128)
        memory[1:] = memory[:-1].clone()

    assert DEAD not in patterns(profile_patterns(program))


@pytest.mark.parametrize("order", ["rows", "backwards", "columns", "interleaved"])
def test_pieces_in_any_order(order: str) -> None:
    def program() -> None:
        for _ in range(2):
            memory = torch.zeros(32, 64)
            if order == "rows":
                for row in range(32):
                    memory[row] = torch.randn(64)
            elif order == "backwards":
                for row in reversed(range(32)):
                    memory[row] = torch.randn(64)
            elif order == "columns":
                for column in range(64):
                    memory[:, column] = torch.randn(32)
            else:
                memory[:, ::2] = torch.randn(32, 32)
                memory[:, 1::2] = torch.randn(32, 32)
            memory.sum()

    found = only(profile_patterns(program), DEAD)
    assert found.count == 2
    assert "piece by piece" in found.detail
    assert found.evidence["overwritten_by"]["operator"] == "aten::copy_"


def test_parameters_that_are_filled_and_then_drawn_are_no_finding() -> None:
    def program() -> None:
        weight = nn.Parameter(torch.zeros(64, 64))
        nn.init.normal_(weight)
        nn.init.trunc_normal_(nn.Parameter(torch.ones(64, 64)))

    assert DEAD not in patterns(profile_patterns(program))


def test_what_happens_at_the_start_alone_is_no_finding() -> None:
    state: dict[str, Any] = {}

    def step() -> None:
        if not state:
            state["table"] = torch.zeros(64, 64)
            state["table"].copy_(torch.randn(64, 64))
        (state["table"] @ torch.randn(64, 64)).sum()

    assert DEAD in patterns(profile_steps(step, steps=2))
    state.clear()
    assert profile_steps(step, steps=4) == []


def test_small_tensors_are_counted_and_not_scanned() -> None:
    def program() -> None:
        memory = torch.zeros(1023)
        memory.sum()
        memory.zero_()

    assert profile_patterns(program) == []
    assert REDUNDANT in patterns(profile_patterns(program, least_bytes=64))


def test_zeroed_twice_is_one_finding_not_two() -> None:
    def program() -> None:
        for _ in range(2):
            memory = torch.zeros(4096)
            memory.zero_()
            memory.add_(torch.randn(4096)).add_(torch.randn(4096))

    assert names(profile_patterns(program)) == [(REDUNDANT, "zero_")]


@pytest.mark.parametrize("deep", [False, True])
def test_fills_inside_operators(deep: bool) -> None:
    def program() -> None:
        logits = torch.randn(2, 5, 32, 32, requires_grad=True)
        labels = torch.randint(0, 5, (2, 32, 32))
        nn.functional.cross_entropy(logits, labels).backward()

    found = [one for one in profile_patterns(program, deep=deep) if one.pattern == REDUNDANT]
    assert [one.path for one in found] == ([("aten::nll_loss2d_backward",)] if deep else [])
