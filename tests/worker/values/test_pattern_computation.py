"""Duplicates, needless copies, guards and unchanged results: edge cases and negatives."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.worker.values.pattern_profiles import (  # noqa: E402
    names,
    only,
    patterns,
    profile_patterns,
    profile_steps,
)

pytestmark = pytest.mark.torch

DUPLICATE, GUARD, UNCHANGED = "duplicate", "guard that never fires", "unchanged across steps"


def test_the_first_of_a_chain_is_the_finding_and_has_all_bytes() -> None:
    layer = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Sigmoid())
    batch = torch.randn(128, 64)

    def program() -> None:
        with torch.no_grad():
            layer(batch)
            layer(batch)

    found = only(profile_patterns(program), DUPLICATE)
    assert (found.operator, found.count) == ("aten::addmm", 1)
    assert found.bytes_wasted == 4 * 128 * 64 * 4
    assert found.evidence["first"]["operator"] == "aten::addmm"
    assert found.evidence["first"]["line"] != found.place.line


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputing_to_save_memory_is_no_duplicate(reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))

    def program() -> None:
        for _ in range(3):
            hidden = torch.randn(128, 64, requires_grad=True)
            checkpoint(block, hidden, use_reentrant=reentrant).square().mean().backward()

    assert profile_patterns(program) == []


def test_equal_shape_but_different_bits() -> None:
    def program() -> None:
        numbers = torch.randn(64, 128)
        numbers.sort(dim=1).values.sum()
        numbers.flip(1) + 1
        numbers + 1
        numbers.double() + 1

    assert DUPLICATE not in patterns(profile_patterns(program))


def test_constants_and_small_tensors_are_no_duplicates() -> None:
    def program() -> None:
        for _ in range(3):
            torch.ones(64, 64) * 2
            torch.zeros(64, 64) + torch.zeros(64, 64)
            torch.arange(1000.0).exp2().sin()

    assert DUPLICATE not in patterns(profile_patterns(program))


def test_steps_are_independent() -> None:
    batch = torch.randn(64, 128)

    def step() -> None:
        (batch.exp() * torch.randn(64, 128)).sum()

    assert patterns(profile_steps(step, steps=4)) == {UNCHANGED}


@pytest.mark.parametrize(
    "same",
    [
        lambda x: x * 1.0,
        lambda x: x + 0.0,
        lambda x: x / 1,
        lambda x: F.pad(x, (0, 0)),
        lambda x: torch.cat([x]),
        lambda x: x[torch.arange(64)],
        lambda x: x.roll(0, 0),
        lambda x: F.avg_pool1d(x[None], 1),
    ],
)
def test_operators_that_give_back_their_input(same: Any) -> None:
    found = profile_patterns(lambda: [same(torch.randn(64, 128).exp()) for _ in range(2)])
    assert "the same bits as its own input" in {one.detail for one in found}


def test_a_factor_that_is_one_now_and_then_is_needed() -> None:
    def program() -> None:
        for time in range(9):
            hidden = torch.randn(64, 128).exp()
            hidden * (0.5 if time % 4 == 3 else 1.0)

    assert profile_patterns(program) == []


def test_a_factor_of_one_in_the_first_step_is_the_start() -> None:
    state = {"scale": 1.0}

    def step() -> None:
        torch.randn(64, 128).exp() * state["scale"]
        state["scale"] *= 0.9

    assert profile_steps(step, steps=4) == []


# --- copies -----------------------------------------------------------------------------------------


def test_copies_that_are_needed() -> None:
    def copy_written() -> None:
        numbers = torch.randn(128, 64)
        other = numbers.clone()
        other.add_(1)
        numbers.sum()

    def source_written() -> None:
        numbers = torch.randn(128, 64)
        before = numbers.clone()
        numbers.add_(1)
        (numbers - before).sum()

    def written_late() -> None:
        snapshots = []
        weight = torch.randn(128, 64)
        for _ in range(3):
            snapshots.append(weight.clone())
            weight.mul_(0.9)

    def another_order() -> None:
        torch.randn(128, 64).t().contiguous()
        torch.randn(2, 3, 64, 64).contiguous(memory_format=torch.channels_last)

    def another_dtype() -> None:
        torch.randn(128, 64).double().sum()

    def a_part() -> None:
        torch.randn(128, 64)[:64].clone().sum()

    def no_copy_at_all() -> None:
        numbers = torch.randn(128, 64)
        numbers.contiguous().to(torch.float32).reshape(64, 128).sum()

    for program in (
        copy_written,
        source_written,
        written_late,
        another_order,
        another_dtype,
        a_part,
        no_copy_at_all,
    ):
        assert profile_patterns(program) == [], program.__name__


def test_a_needless_copy_may_outlive_its_source() -> None:
    def program() -> Any:
        def features() -> Any:
            return torch.randn(128, 64).tanh().clone()

        return [features().sum() for _ in range(3)]

    found = only(profile_patterns(program), DUPLICATE)
    assert (found.operator, found.count) == ("aten::clone", 3)


def test_copies_of_models_are_needed_when_training_goes_on() -> None:
    def program() -> None:
        model = nn.Linear(64, 64)
        reference = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            batch = torch.randn(64, 64)
            loss = (model(batch) - reference(batch).detach() + 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert profile_patterns(program) == []


# --- guards -----------------------------------------------------------------------------------------


def test_three_sightings_and_no_exception() -> None:
    def quiet(times: int, fires: bool) -> list[tuple[str, str]]:
        def program() -> None:
            for time in range(times):
                numbers = torch.rand(64, 128)
                if fires and time == times - 1:
                    numbers[3, 4] = 2.0
                numbers.clamp(0, 1)

        return names(profile_patterns(program))

    assert quiet(2, fires=False) == []
    assert quiet(3, fires=False) == [(GUARD, "clamp")]
    assert quiet(9, fires=True) == []


def test_a_guard_is_counted_from_the_first_time() -> None:
    def program() -> None:
        for _ in range(5):
            torch.nan_to_num(torch.randn(64, 128))

    found = only(profile_patterns(program), GUARD)
    assert found.count == 5
    assert found.bytes_wasted == found.bytes_written == 5 * 64 * 128 * 4


def test_a_guard_that_fires_in_one_layer_is_needed_in_all() -> None:
    layers = nn.ModuleList(nn.Identity() for _ in range(4))

    def program() -> None:
        for number, layer in enumerate(layers):
            torch.clamp(layer(torch.rand(64, 128)), 0, 0.5 if number == 2 else 1)

    assert profile_patterns(program) == []


@pytest.mark.parametrize(
    "guard",
    [
        lambda x: torch.where(x > -1, x, torch.zeros_like(x)),
        lambda x: torch.where(x < -1, torch.zeros_like(x), x),
        lambda x: x.masked_fill(x < 0, 0.0),
        lambda x: x.clone().masked_fill_(x < 0, 0.0),
        lambda x: x.add(0).clamp_(0, 9),
        torch.abs,
        torch.relu,
        lambda x: torch.maximum(x, torch.zeros(128)),
        lambda x: torch.minimum(torch.full_like(x, 9.0), x),
        lambda x: (x * 9).int().float().floor(),
        lambda x: x.double().remainder(7),
    ],
)
def test_guards_of_all_kinds(guard: Any) -> None:
    found = profile_patterns(lambda: [guard(torch.rand(64, 128) + 0.5) for _ in range(3)])
    assert GUARD in patterns(found)


def test_a_part_of_a_storage_may_be_guarded() -> None:
    memory = torch.rand(256, 64)

    def program() -> None:
        for start in (0, 64, 128):
            memory[start : start + 64].clamp(0, 1)

    assert only(profile_patterns(program), GUARD).count == 3


def test_guards_that_are_not_reported() -> None:
    def program() -> None:
        for _ in range(3):
            hidden = torch.randn(64, 128, requires_grad=True)
            F.relu(hidden).sum().backward()
            torch.rand(20).clamp(0, 1)
            (torch.rand(64, 256) < 2).masked_fill(
                torch.zeros(64, 256, dtype=torch.bool), value=False
            )
            torch.distributions.Categorical(logits=torch.randn(256, 64)).entropy()

    assert profile_patterns(program) == []


# --- unchanged --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "wanted"), [(2, False), (3, True), (5, True)])
def test_three_steps_are_required(steps: int, wanted: bool) -> None:
    table = torch.randn(64, 128)

    def step() -> None:
        (table.exp() * torch.randn(64, 128)).sum()

    found = profile_steps(step, steps=steps)
    assert patterns(found) == ({UNCHANGED} if wanted else set())
    if wanted:
        assert found[0].count == steps - 1  # the first is needed
        assert found[0].bytes_wasted == (steps - 1) * table.numel() * 4


def test_one_exception_is_enough() -> None:
    table = torch.randn(64, 128)
    state = {"step": 0}

    def step() -> None:
        state["step"] += 1
        scale = 2.0 if state["step"] == 5 else 1.5
        ((table * scale).exp() * torch.randn(64, 128)).sum()

    assert profile_steps(step, steps=6) == []


def test_the_last_of_a_chain_is_the_finding() -> None:
    table = torch.randn(64, 128)

    def step() -> None:
        prepared = (table.exp() + 1).log().sqrt()
        (prepared * torch.randn(64, 128)).sum()

    found = only(profile_steps(step, steps=5), UNCHANGED)
    assert found.operator == "aten::sqrt"
    assert found.bytes_wasted > 4 * table.numel() * 4


def test_calls_are_distinguished_by_their_place_in_the_step() -> None:
    tables = [torch.randn(64, 128) for _ in range(3)]

    def step() -> None:
        for table in tables:
            (table.exp() * torch.randn(64, 128)).sum()

    assert only(profile_steps(step, steps=4), UNCHANGED).count == 9


def test_what_changes_or_was_asked_for_is_not_reported() -> None:
    weight = torch.randn(64, 128)

    def step() -> None:
        torch.manual_seed(0)
        torch.randn(64, 128)  # random, though the same each time
        torch.zeros(64, 128).add_(1)
        torch.ones(64, 128) * 3
        weight.clone().add_(1)
        weight.add_(0.01)
        weight.exp()

    assert UNCHANGED not in patterns(profile_steps(step, steps=4))
