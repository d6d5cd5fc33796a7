"""Runs with chosen seeds and garbage in uninitialized memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchyard.worker.values.pricing.checked_run import (  # noqa: E402
    FINAL,
    POISONS,
    SAVED,
    CheckedRun,
    tensors_within,
)

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def same_random_state() -> Iterator[None]:
    """Restore the generators."""
    python, state = random.getstate(), torch.get_rng_state()
    yield
    random.setstate(python)
    torch.set_rng_state(state)


def during(plan: dict[str, Any], work: Any) -> tuple[Any, CheckedRun]:
    """Return what a function returns while a check is active."""
    checked = CheckedRun(plan)
    checked.start()
    try:
        return work(), checked
    finally:
        checked.stop()


@pytest.mark.parametrize("poison", sorted(POISONS))
def test_uninitialized_memory_is_never_zero(poison: str) -> None:
    like = torch.zeros(3)

    def work() -> list[Any]:
        return [
            torch.empty(3),
            torch.empty(2, 2, dtype=torch.int64),
            torch.empty_like(like),
            torch.empty_like(like, dtype=torch.complex64),
            like.new_empty(3),
            torch.empty_strided((2,), (1,)),
            torch.empty(3, requires_grad=True),
            torch.empty(2, dtype=torch.float16),
        ]

    made, _ = during({"poison": poison}, work)
    for tensor in made:
        kind = "float" if tensor.is_floating_point() or tensor.is_complex() else "int"
        expected = torch.full_like(tensor.detach(), POISONS[poison][kind])
        assert torch.equal(tensor.detach().nan_to_num(9.0), expected.nan_to_num(9.0)), tensor


def test_nothing_is_replaced_afterwards() -> None:
    before = (torch.empty, torch.save, torch.manual_seed, random.seed, torch.Generator)
    during({"seed": 1, "poison": "nan"}, lambda: None)
    after = (torch.empty, torch.save, torch.manual_seed, random.seed, torch.Generator)
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert "new_empty" not in vars(torch.Tensor) or torch.zeros(1).new_empty(0).numel() == 0


def test_seeds_of_the_program_are_shifted() -> None:
    def work() -> tuple[Any, ...]:
        first = torch.rand(3)
        torch.manual_seed(5)
        second = torch.rand(3)
        own = torch.rand(3, generator=torch.Generator().manual_seed(5))
        random.seed(5)
        return first, second, own, torch.tensor(random.random())

    results = [during({"seed": seed}, work)[0] for seed in (0, 1, 0)]
    for one, other, again in zip(*results, strict=True):
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
    torch.manual_seed(5)
    assert torch.equal(results[0][1], torch.rand(3))


def test_tensors_of_containers_and_objects_are_results() -> None:
    class Box:
        def __init__(self) -> None:
            self.inside = torch.ones(2)

    net = torch.nn.Linear(2, 2)
    shared = torch.zeros(1)
    value = {"a": [shared, (shared, Box())], "b": net, "c": "text", "d": torch, "e": lambda: 1}
    assert [tuple(one.shape) for one in tensors_within(value)] == [(1,), (2,), (2, 2), (2,)]


def test_a_cycle_ends() -> None:
    value: list[Any] = [torch.zeros(1)]
    value.append(value)
    assert len(tensors_within(value)) == 1


def test_saved_tensors_count_as_they_were(tmp_path: Any) -> None:
    def work(number: float, late: float) -> dict[str, Any]:
        def run() -> None:
            tensor = torch.full((4,), number)
            torch.save({"tensor": tensor}, tmp_path / "saved.pt")
            tensor.fill_(late)

        _, checked = during({"seed": 0}, run)
        checked.finish({"__name__": "x", "kept": torch.full((2,), number)})
        return checked.results()

    one, late, other = work(1.0, 5.0), work(1.0, 6.0), work(2.0, 5.0)
    assert one[SAVED] == late[SAVED] != other[SAVED]
    assert one[FINAL]["digest"] == late[FINAL]["digest"] != other[FINAL]["digest"]
