"""Which operators `why --compiler` leaves to eager kernels."""

from __future__ import annotations

from tests.why.synthetic import source
from torchyard.why.ablation import operators_to_keep
from torchyard.why.model import Part


def part(operator: str, baseline_us: float, candidate_us: float) -> Part:
    difference_ns = 1e3 * (candidate_us - baseline_us)
    return Part(
        kind="operators",
        name=operator,
        baseline_ns=1e3 * baseline_us,
        candidate_ns=1e3 * candidate_us,
        low_ns=difference_ns,
        high_ns=difference_ns,
        p_value=0.5,
        adjusted_p=0.5,
        named=False,
        sources=(source("m", operator),),
    )


def test_operators_that_lose_most_come_first() -> None:
    parts = [part("gelu", 10, 20), part("softmax", 10, 50), part("add", 30, 10)]
    assert operators_to_keep(parts) == ["softmax", "gelu"]


def test_negligible_losses_and_library_calls_are_not_tried() -> None:
    parts = [part("native_layer_norm", 100, 200), part("detach", 0.1, 1), part("addmm", 10, 90)]
    assert operators_to_keep(parts) == ["native_layer_norm"]


def test_nothing_is_tried_where_nothing_is_slower() -> None:
    assert operators_to_keep([part("gelu", 20, 20), part("add", 30, 10)]) == []
