"""One observation: a tensor that an operator wrote. The input of all patterns.

Also tracks fills that are overwritten in pieces: after `out = torch.zeros(n, k)` and `out[i] = ...`
for each i, the zeros were never used. Pieces may come in any order and have gaps (`table[:, 0::2]`),
so their union is checked element by element, once, when their sizes add up.
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
    """A tensor that an operator created or wrote. `tensor` is valid only inside `observe`."""

    def __init__(self) -> None:
        self.operator: Operator
        self.func: Any
        self.arguments: Any
        self.keywords: Any
        self.place: Place
        self.path: Tuple[str, ...] = ()
        """Enclosing operators, outermost first (deep only)."""
        self.in_backward = False
        """Called by a backward pass."""
        self.step = 0
        self.position = 0
        """Index among the operator's written tensors."""
        self.tensor: torch.Tensor
        self.layout: Layout
        self.scan: Scan
        self.size_bytes = 0
        self.fresh = True
        """True for new memory, False for a write to existing memory."""
        self.given = False
        """Whether the program passed this memory to the outermost operator as an output."""
        self.compared = False
        """Whether `scan.unchanged` is valid: the previous contents were available."""
        self.whole = True
        """Whether the tensor covers its whole storage."""
        self.state: StorageState
        self.was_defined = False
        """Whether the memory held values before this write."""
        self.was_fill: Optional["Observation"] = None
        """The fill that this write overwrote, if nothing else wrote in between."""
        self.was_reads = 0
        """Number of reads between the previous write and this one."""
        self.site: Optional[Site] = None
        """Call site in the source of the program, for fills."""
        self.node = -1
        self.number = 0
        """Index among the operators inside the outermost one, in start order; identifies it in a replay."""
        self.inputs: Inputs = ()
        """Tensors that the operator read, without those that it only overwrote."""
        self.written_inside = False
        """Deep only: an inner operator wrote all of it and was observed separately."""

    def release(self) -> None:
        """Drop references to tensors, so that their memory can be freed."""
        self._shape, self._dtype, self._device = self.shape, self.dtype, self.device
        self.tensor = self.arguments = self.keywords = None
        self.inputs = ()

    @property
    def shape(self) -> Tuple[int, ...]:
        """Of the tensor, also after `release`."""
        return self._shape if self.tensor is None else tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor, also after `release`."""
        return self._dtype if self.tensor is None else self.tensor.dtype

    @property
    def device(self) -> str:
        """Of the tensor, also after `release`."""
        return self._device if self.tensor is None else str(self.tensor.device)

    @property
    def computed(self) -> bool:
        """Whether it is a new result that the program computed from other tensors.

        Excluded are fills, random numbers, tensors inside operators, and lists of tensors, which
        optimizers use.
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
        """Whether a copy changed the dtype."""
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
        """Share of the elements that had the same bits before; 0 for new memory."""
        return float(self.scan.unchanged) / self.scan.count if not self.fresh else 0.0

    def values(self, most: int = 4096) -> torch.Tensor:
        """Return a flat copy of up to `most` elements spread over the tensor."""
        flat = self.tensor.detach().reshape(-1)
        step = max(1, flat.numel() // most)
        return flat[::step][:most].clone().cpu()


_MOST_PIECES = 4096

_Piece = Tuple[Tuple[int, ...], Tuple[int, ...], int]


class FillPieces:
    """The overwritten pieces of a fill that has not been read."""

    def __init__(self, fill: Observation, size_bytes: int) -> None:
        self.fill = fill
        self._size_bytes = size_bytes
        self._width = fill.layout.bits * fill.layout.per_number // 8
        self._pieces: List[_Piece] = []
        self._bytes = 0
        self._in_order = True
        self.possible = True
        """False if the pieces cannot cover the fill any more, or are too many."""

    def add(self, piece: torch.Tensor) -> bool:
        """Add an overwritten piece; return whether the whole fill is overwritten now."""
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
        # The sizes add up, so the pieces cover the fill exactly if no element was written twice.
        marks = torch.zeros(self._size_bytes // self._width, dtype=torch.bool, device="cpu")
        for shape, stride, offset in self._pieces:
            marks.as_strided(shape, stride, offset).fill_(True)
        return bool(marks.all())


def covered_fill(operator: Operator, before: Before) -> Optional[Observation]:
    """Track a fill that is overwritten piece by piece; return it once it is overwritten completely."""
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
    """Return the fill that a storage holds after a write, if any; with `inside`, the innermost one."""
    if not operator.fills or not observation.whole:
        return None
    if inside and observation.written_inside and observation.state.fill is not None:
        inner: Observation = observation.state.fill
        return inner
    return observation
