"""What is found since values are followed further, and work that a program cannot avoid."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.worker.values.pattern_profiles import only, patterns, profile_patterns  # noqa: E402

pytestmark = pytest.mark.torch


def test_integers_that_are_only_moved() -> None:
    def counted() -> None:
        for _ in range(4):
            cells = (torch.rand(300, 300) < 0.3).long()
            (cells.roll(1, 0) + cells.roll(1, 1)).amax()

    assert only(profile_patterns(counted), "heavy type").operator == "aten::_to_copy"

    def indexed() -> None:
        table = torch.randn(300, 300)
        for _ in range(4):
            cells = (torch.rand(300, 300) < 0.3).long()
            table.gather(0, cells.roll(1, 0)).sum()

    assert profile_patterns(indexed) == []


def test_integers_of_which_one_is_selected() -> None:
    def coded() -> None:
        for _ in range(4):
            codes = (torch.rand(200, 200) * 255).long()
            codes.max()

    assert "uint8" in only(profile_patterns(coded), "heavy type").detail


def test_a_product_with_a_constant_factor() -> None:
    def product() -> None:
        ones = torch.ones(4096, 1)
        for _ in range(4):
            (torch.randn(4096, 16) - ones @ torch.randn(1, 16)).sum()

    assert only(profile_patterns(product), "structured").operator == "aten::mm"

    def trained() -> None:
        scale = nn.Parameter(torch.ones(256, 64))
        for _ in range(4):
            (torch.randn(64, 256) @ scale).sum()

    assert profile_patterns(trained) == []


def test_ones_that_are_added_by_index() -> None:
    def counted() -> None:
        for _ in range(4):
            index = torch.randint(0, 500, (8000,))
            torch.zeros(500).index_add_(0, index, torch.ones(8000)).sum()

    assert only(profile_patterns(counted), "single value").operator == "aten::ones"

    def started_with_ones() -> None:
        for _ in range(4):
            index = torch.randint(0, 8000, (20000,))
            torch.ones(8000).index_add(0, index, torch.randn(20000)).sum()

    assert profile_patterns(started_with_ones) == []


def test_rows_of_padding_that_are_masked() -> None:
    def padded(share: float) -> None:
        for _ in range(4):
            outside = torch.rand(2000, 1) < share
            torch.randn(2000, 32).masked_fill(outside, 0.0).sum(1).norm()

    assert patterns(profile_patterns(lambda: padded(0.95))) == {"frequent values"}
    assert profile_patterns(lambda: padded(0.8)) == []


def test_a_write_that_repeats_what_the_last_step_wrote() -> None:
    def pruned(*, moves: bool) -> None:
        weight = nn.Parameter(torch.randn(100, 100))
        keep = torch.rand(100, 100) < 0.5
        optimizer = torch.optim.SGD([weight], 0.1)
        with torch.no_grad():
            weight.mul_(keep)
        for _ in range(12):
            drawn = torch.randn(100, 100)
            weight.grad = drawn if moves else drawn * keep
            optimizer.step()
            with torch.no_grad():
                weight.mul_(keep)

    assert patterns(profile_patterns(lambda: pruned(moves=False))) == {"redundant write"}
    assert profile_patterns(lambda: pruned(moves=True)) == []


def test_clipping_counts_only_far_from_its_limit() -> None:
    def clipped(limit: float) -> None:
        weight = nn.Parameter(torch.randn(100, 100))
        optimizer = torch.optim.SGD([weight], 0.01)
        for _ in range(6):
            weight.grad = torch.randn(100, 100)
            nn.utils.clip_grad_norm_([weight], limit)
            optimizer.step()

    assert patterns(profile_patterns(lambda: clipped(1e5))) == {"redundant write"}
    assert profile_patterns(lambda: clipped(200.0)) == []


def test_a_bound_for_a_logarithm() -> None:
    def bounded(lowest: float) -> None:
        for _ in range(4):
            (torch.rand(200, 200) + 0.5).clamp(min=lowest).log().sum()

    assert profile_patterns(lambda: bounded(1e-9)) == []
    assert patterns(profile_patterns(lambda: bounded(0.1))) == {"guard that never fires"}


def test_a_state_that_fills_up() -> None:
    def spread(*, grows: bool) -> None:
        for step in range(12):
            rows = 3 * step + 1 if grows else 12
            state = torch.zeros(400, 400)
            state[:rows] = torch.rand(rows, 400) + 1
            (state * 2.0).sum()

    assert "frequent values" in patterns(profile_patterns(lambda: spread(grows=False)))
    assert profile_patterns(lambda: spread(grows=True)) == []


def test_iterations_that_converge() -> None:
    def iterate(*, recomputed: bool) -> None:
        numbers = torch.rand(100, 100)
        constant = torch.rand(100, 100)
        for _ in range(60):
            (constant * 2 if recomputed else numbers * 2).sum()
            numbers = ((numbers + torch.rand(100, 100) * 1e-12) * 64).round() / 64

    assert "duplicate" in patterns(profile_patterns(lambda: iterate(recomputed=True)))
    found = profile_patterns(lambda: iterate(recomputed=False))
    assert all("round" not in one.operator for one in found)
