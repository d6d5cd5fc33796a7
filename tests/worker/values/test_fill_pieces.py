"""Fills that are overwritten piece by piece: covers, gaps and overlaps."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from torchyard.worker.values import observation as fill_pieces  # noqa: E402
from torchyard.worker.values.observation import FillPieces, Observation  # noqa: E402
from torchyard.worker.values.scanning.cpu_scan import LAYOUTS  # noqa: E402

pytestmark = pytest.mark.torch


def pieces_of(memory: Any) -> FillPieces:
    fill = Observation()
    fill.layout = LAYOUTS[memory.dtype]
    return FillPieces(fill, memory.untyped_storage().nbytes())


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_only_a_cover_is_one(data: st.DataObject) -> None:
    memory = torch.zeros(6, 8)
    covered = torch.zeros(6, 8, dtype=torch.bool)
    pieces = pieces_of(memory)
    total = 0
    for _ in range(12):
        top, bottom = sorted(data.draw(st.tuples(st.integers(0, 6), st.integers(0, 6))))
        left, right = sorted(data.draw(st.tuples(st.integers(0, 8), st.integers(0, 8))))
        step = data.draw(st.integers(1, 2))
        where = (slice(top, bottom), slice(left, right, step))
        part = memory[where]
        if not part.numel():
            continue
        covered[where] = True
        total += part.numel()
        whole = pieces.add(part)
        assert whole == (total == 48 and bool(covered.all()))
        assert pieces.possible == (total < 48)
        if not pieces.possible:
            return


def test_rows_in_order_are_a_cover_without_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FillPieces, "_cover", lambda _self: pytest.fail("not needed"))
    memory = torch.zeros(5, 3)
    pieces = pieces_of(memory)
    assert [pieces.add(memory[row]) for row in range(5)] == [False] * 4 + [True]


def test_another_dtype_on_the_same_memory_is_not_followed() -> None:
    memory = torch.zeros(8)
    pieces = pieces_of(memory)
    assert not pieces.add(memory.view(torch.float64)[:2])
    assert not pieces.possible


def test_too_many_pieces_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill_pieces, "_MOST_PIECES", 3)
    memory = torch.zeros(8)
    pieces = pieces_of(memory)
    assert [pieces.add(memory[at : at + 1]) for at in (0, 1, 2)] == [False] * 3
    assert not pieces.possible


def test_complex_numbers_are_two_elements_wide() -> None:
    memory = torch.zeros(4, dtype=torch.complex64)
    pieces = pieces_of(memory)
    assert not pieces.add(memory[2:])
    assert pieces.add(memory[:2])
