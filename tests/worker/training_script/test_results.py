"""The comparison of results: rounding is not called wrong, and wrong results never pass."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchyard.worker.training_script.results import compare  # noqa: E402

pytestmark = pytest.mark.torch


def record(
    losses: list[float], start: list[float], end: list[float], *, random: bool = False
) -> dict[str, Any]:
    return {
        "losses": losses,
        "returned": [],
        "before": [torch.tensor(start)],
        "after": [torch.tensor(end)],
        "random": random,
    }


BASE = record([1.0, 0.9], [1.0, 2.0], [0.9, 2.1])


@pytest.mark.parametrize(
    ("candidate", "status"),
    [
        (BASE, "pass"),
        (record([1.0000005, 0.9], [1.0, 2.0], [0.90001, 2.1]), "pass"),
        (record([2.0, 0.9], [1.0, 2.0], [0.9, 2.1]), "fail"),
        (record([float("nan"), 0.9], [1.0, 2.0], [0.9, 2.1]), "fail"),
        (record([1.0, 0.9], [1.0, 2.0], [1.0, 2.0]), "fail"),
        (record([1.0, 0.9], [1.0, 2.0], [float("inf"), 2.1]), "fail"),
        (record([1.0, 0.9], [1.0, 2.0], [0.91, 2.1]), "unchecked"),
        (record([2.0, 0.9], [1.0, 2.0], [0.9, 2.1], random=True), "random"),
        (record([1.0], [1.0, 2.0], [0.9, 2.1]), "unchecked"),
        (record([1.0, 0.9], [1.1, 2.0], [0.9, 2.1]), "nondeterministic"),
    ],
)
def test_the_same_precision(candidate: dict[str, Any], status: str) -> None:
    assert compare(BASE, candidate, [])["status"] == status


@pytest.mark.parametrize(
    ("candidate", "status"),
    [
        (BASE, "pass"),
        (record([1.01, 0.91], [1.0, 2.0], [0.905, 2.1]), "less-accurate"),
        (record([1.5, 0.9], [1.0, 2.0], [0.9, 2.1]), "unchecked"),
        (record([1.0, 0.9], [1.0, 2.0], [0.5, 2.1]), "unchecked"),
    ],
)
def test_a_lower_precision_passes_only_without_a_difference(
    candidate: dict[str, Any], status: str
) -> None:
    assert compare(BASE, candidate, ["amp"])["status"] == status


def test_rounding_of_tiny_losses_and_updates_is_not_wrong() -> None:
    zero = record([0.0], [1.0, 2.0], [1.0, 2.0])
    assert compare(zero, record([1e-9], [1.0, 2.0], [1.0, 2.0]), [])["status"] == "pass"
    one_bit = record([0.0], [1.0, 2.0], [1.0 + 2**-23, 2.0])
    assert compare(zero, one_bit, [])["status"] == "pass"


def test_nothing_to_compare_is_not_a_pass() -> None:
    empty = {"losses": [], "returned": [], "before": [], "after": [], "random": False}
    answer = compare(empty, empty, [])
    assert answer["status"] == "unchecked"
    assert "nothing" not in answer["detail"]
    assert "--no-accuracy" in answer["detail"]
