"""One observation: what one operator wrote. The input of all patterns.

Also follows fills that are overwritten in pieces: after `out = torch.zeros(n, k)` and then
`out[i] = ...` for each i, the zeros were written for nothing.
Pieces may come in any order and have gaps (`table[:, 0::2]`), so their union is checked element by
element, once, when their sizes add up.
"""

from typing import Any, List, Optional, Sequence, Tuple

import torch

from torchyard.worker.values.operators import Operator
from torchyard.worker.values.places import Place
from torchyard.worker.values.proofs.syntax import Site
from torchyard.worker.values.scanning.cpu_scan import Layout, Scan
from torchyard.worker.values.storages import Before, StorageState

Inputs = Sequence[Tuple[torch.Tensor, StorageState]]


class Observation:
    """A tensor that an operator made or wrote. `tensor` is valid only while patterns look."""

    __slots__ = (
        "_device",
        "_dtype",
        "_shape",
        "arguments",
        "compared",
        "fresh",
        "func",
        "given",
        "in_backward",
        "inputs",
        "keywords",
        "layout",
        "node",
        "number",
        "operator",
        "path",
        "place",
        "position",
        "scan",
        "site",
        "size_bytes",
        "state",
        "step",
        "tensor",
        "was_defined",
        "was_fill",
        "was_reads",
        "whole",
        "written_inside",
    )

    def __init__(self) -> None:
        self.operator: Operator
        self.func: Any
        self.arguments: Any
        self.keywords: Any
        self.place: Place
        self.path: Tuple[str, ...] = ()
        """Operators that this one runs inside of, outermost first (deep only)."""
        self.in_backward = False
        """Called by a backward pass, wherever the place is."""
        self.step = 0
        self.position = 0
        """Which of the operator's written tensors, counted from 0."""
        self.tensor: torch.Tensor
        self.layout: Layout
        self.scan: Scan
        self.size_bytes = 0
        self.fresh = True
        """New memory, or a write over what was there."""
        self.given = False
        """Whether the program gave this memory to the outermost operator to write: then a write of an
        operator inside is that operator's own."""
        self.compared = False
        """Whether `scan.unchanged` counts: there was a copy of what was there before."""
        self.whole = True
        """Whether it is all of its storage."""
        self.state: StorageState
        self.was_defined = False
        """Whether the memory held values before this write."""
        self.was_fill: Optional["Observation"] = None
        """The fill that this write overwrote, if nothing else was written in between."""
        self.was_reads = 0
        """Reads between the write before and this one."""
        self.site: Optional[Site] = None
        """Of a fill: the call in the source of the program."""
        self.node = -1
        self.number = 0
        """Which of the operators inside the outermost one, in the order they began: a replay finds it
        again by this."""
        self.inputs: Inputs = ()
        """What the operator read, without what it only overwrote."""
        self.written_inside = False
        """Deep only: an operator inside wrote all of it, which was observed on its own. The values
        are worth a look, the write itself was judged."""

    def release(self) -> None:
        """Let go of tensors, which would keep their memory; the rest may be kept."""
        self._shape, self._dtype, self._device = self.shape, self.dtype, self.device
        self.tensor = self.arguments = self.keywords = None
        self.inputs = ()

    @property
    def shape(self) -> Tuple[int, ...]:
        """Of the tensor, also when it is gone."""
        return self._shape if self.tensor is None else tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor, also when it is gone."""
        return self._dtype if self.tensor is None else self.tensor.dtype

    @property
    def device(self) -> str:
        """Of the tensor, also when it is gone."""
        return self._device if self.tensor is None else str(self.tensor.device)

    @property
    def computed(self) -> bool:
        """Whether it is a new result of an operator of the program, worked out from other values.

        What is filled or drawn at random was asked for; what an operator makes inside of itself is
        not the program's; and lists of tensors are the business of optimisers.
        """
        kind = self.operator
        return bool(
            self.fresh
            and self.inputs
            and not self.path
            and not (kind.fills or kind.random or kind.many)
        )

    @property
    def converted(self) -> bool:
        """Whether a copy made another dtype of it."""
        source = self.inputs[0][0] if self.inputs else None
        return bool(self.operator.copies and source is not None and source.dtype != self.dtype)

    @property
    def single(self) -> bool:
        """Whether all elements have the same bits."""
        return bool(self.scan.like_first == self.scan.count)

    @property
    def single_zero(self) -> bool:
        """Whether all bits are zero."""
        return bool(self.scan.zeros == self.scan.count)

    @property
    def unchanged_share(self) -> float:
        """Share of the elements that had these bits before; 0 for new memory."""
        return float(self.scan.unchanged) / self.scan.count if not self.fresh else 0.0

    def values(self, most: int = 4096) -> torch.Tensor:
        """Elements spread evenly over the tensor, as a flat copy."""
        flat = self.tensor.detach().reshape(-1)
        step = max(1, flat.numel() // most)
        return flat[::step][:most].clone().cpu()


Observations = List[Observation]


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


def fill_held(
    operator: Operator, observation: Observation, *, inside: bool
) -> Optional[Observation]:
    """The fill that a storage holds after a write, if any; inside an operator, the innermost."""
    if not operator.fills or not observation.whole:
        return None
    if inside and observation.written_inside and observation.state.fill is not None:
        inner: Observation = observation.state.fill
        return inner
    return observation
