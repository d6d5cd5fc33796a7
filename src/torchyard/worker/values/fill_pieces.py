"""A fill that is overwritten piece by piece: whether nothing of it is left to be read.

`out = torch.zeros(n, k)` and then `out[i] = ...` for each i: the zeros were written for nothing.
Pieces may come in any order and have gaps (`table[:, 0::2]`), so what they cover together is checked
element by element, once, when their sizes add up.
"""

from typing import List, Optional, Tuple

import torch

from torchyard.worker.values.before import Before
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import Operator

_MOST_PIECES = 4096

_Piece = Tuple[Tuple[int, ...], Tuple[int, ...], int]


class FillPieces:
    """The pieces of one fill that were overwritten, while nothing was read."""

    def __init__(self, fill: Observation, size_bytes: int) -> None:
        self.fill = fill
        self._size_bytes = size_bytes
        self._width = fill.layout.bits * fill.layout.per_number // 8
        self._pieces: List[_Piece] = []
        self._bytes = 0
        self._in_order = True
        self.possible = True
        """False when the pieces cannot be a cover any more, or are too many to follow."""

    def add(self, piece: torch.Tensor) -> bool:
        """Count an overwritten piece; whether all of the fill is gone now."""
        width = self._width
        if piece.element_size() != width:  # the memory is written as another dtype
            self.possible = False
            return False
        start = piece.storage_offset() * width
        self._in_order = self._in_order and start == self._bytes and piece.is_contiguous()
        self._bytes += piece.numel() * width
        self._pieces.append((tuple(piece.shape), piece.stride(), piece.storage_offset()))
        if self._bytes == self._size_bytes:
            self.possible = False
            return self._in_order or self._cover()
        self.possible = self._bytes < self._size_bytes and len(self._pieces) < _MOST_PIECES
        return False

    def _cover(self) -> bool:
        # As many elements as there are: they are a cover exactly when none was written twice.
        marks = torch.zeros(self._size_bytes // self._width, dtype=torch.bool, device="cpu")
        for shape, stride, offset in self._pieces:
            marks.as_strided(shape, stride, offset).fill_(True)
        return bool(marks.all())


def covered_fill(operator: Operator, before: Before) -> Optional[Observation]:
    """Follow a fill that is overwritten piece by piece; the fill, once nothing is left of it."""
    state, pieces = before.state, before.state.pieces
    state.pieces = None
    if before.whole or before.reads or not operator.overwrites:
        return None
    if pieces is None:
        if before.fill is None:
            return None
        pieces = FillPieces(before.fill, state.size_bytes)
    if pieces.add(before.tensor):
        covered: Observation = pieces.fill
        return covered
    if pieces.possible:
        state.pieces = pieces
    return None


def fill_held(operator: Operator, seen: Observation, *, inside: bool) -> Optional[Observation]:
    """The fill that a storage holds after a write, if any; inside an operator, the innermost."""
    if not operator.fills or not seen.whole:
        return None
    if inside and seen.written_inside and seen.state.fill is not None:
        inner: Observation = seen.state.fill
        return inner
    return seen
