"""One observation: a tensor that an operator wrote. The input of all patterns.

Also tracks fills that are overwritten in pieces: after `out = torch.zeros(n, k)` and `out[i] = ...`
for each i, the zeros were never used. Pieces may come in any order and have gaps (`table[:, 0::2]`),
so their union is checked element by element, once, when their sizes add up.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torchyard.worker.values.operators import Operator
from torchyard.worker.values.places import Place
from torchyard.worker.values.proofs.syntax import Site
from torchyard.worker.values.scanning.cpu_scan import Layout, Scan

_PURGE_EVERY = 4096
_MOST_PIECES = 64
"""Written pieces of uninitialized memory that are remembered; the earliest are forgotten first."""

untyped_storage = torch._C.TensorBase.untyped_storage
"""The original method of torch: `unobserved.py` replaces the one that programs call."""


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that identifies the memory of a tensor during its lifetime."""
    key: int = untyped_storage(tensor)._cdata
    return key


class Reader(NamedTuple):
    """How an operator of the program read a tensor."""

    operator: str
    """Without the underscore of in-place operators."""
    others: Tuple[Tuple[torch.dtype, int], ...]
    """Dtype and number of elements of its other tensor arguments."""
    float_scalar: bool
    """Whether a Python float is among its arguments."""
    trained: bool
    """Whether the tensor is a parameter or requires a gradient."""
    position: int
    """Index of the tensor among the arguments; -1 if it is a keyword or in a list."""


def reader_of(operator: Operator, tensor: torch.Tensor, read: Any, args: Any) -> Reader:
    """Describe an operator that reads a tensor; `read` are all tensors that it reads."""
    others = tuple((one.dtype, one.numel()) for one in read if one is not tensor)
    scalar = any(isinstance(one, float) for one in args)
    position = next((at for at, one in enumerate(args) if one is tensor), -1)
    return Reader(operator.name.rstrip("_"), others, scalar, tensor.requires_grad, position)


class Piece(NamedTuple):
    """Bytes of a storage: all from start to end, or those of a strided tensor between them."""

    start: int
    end: int
    layout: Tuple[Any, ...] = ()

    @property
    def dense(self) -> bool:
        """Whether it has all bytes from start to end."""
        return not self.layout

    def touches(self, other: "Piece") -> bool:
        """Return whether both are dense, and overlap or are adjacent."""
        return self.dense and self.start <= other.end and other.start <= self.end

    def contains(self, other: "Piece") -> bool:
        """Return whether all bytes of another piece are in this one."""
        return self.dense and self.start <= other.start and other.end <= self.end


def piece_of(tensor: torch.Tensor) -> Piece:
    """Return the bytes of a tensor in its storage."""
    if tensor.is_nested:  # has neither sizes nor strides
        return Piece(0, untyped_storage(tensor).nbytes())
    size, shape, strides = tensor.element_size(), tuple(tensor.shape), tensor.stride()
    start = tensor.storage_offset()
    elements = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if tensor.numel() else 0
    layout = () if elements == tensor.numel() and 0 not in strides else (shape, strides)
    return Piece(start * size, (start + elements) * size, layout)


class StorageState:
    """Tracked state of one storage."""

    def __init__(self, key: int, ref: Any, size_bytes: int, defined: bool) -> None:
        self.key = key
        self.ref = ref
        self.size_bytes = size_bytes
        self.defined = defined
        """False while a part of the memory may be uninitialized."""
        self._written: List[Piece] = []
        """The pieces that were written, while others may be uninitialized."""
        self.born = 0
        """Number of the operator during which it first appeared."""
        self.node = -1
        """Last writer in the flow graph; -1 for memory that existed before profiling."""
        self.outside = False
        """Whether the program can access it without the dispatcher; then the fields below are unreliable."""
        self.communicated = False
        """Whether a collective operator sent or received it, as the gradient buckets of DDP."""
        self.epoch = 0
        """Value of `Storages.epoch` when the contents were last known."""
        self.version = 0
        """Number of writes."""
        self.reads = 0
        """Reads since the last write, including those of inner operators."""
        self.uses = 0
        """Reads since the last write by operators of the program."""
        self.readers: Optional[Set[Reader]] = None
        """Distinct readers since the last write, if a pattern requested them; None if some may be unknown."""
        self.pieces: Optional[Any] = None
        """`FillPieces` of an unread fill that is being overwritten piece by piece."""
        self.fill: Optional[Any] = None
        """Observation of the fill that wrote the whole storage, until the next write."""
        self.hash: Optional[int] = None
        """Hash of the contents after the last write, if it was fully observed."""
        self.kernel_write: Optional[Any] = None
        """Observation of the generated kernel that wrote the whole storage, until the next write."""

    def undefine(self) -> None:
        """Note that the memory was left uninitialized."""
        self.defined, self._written = False, []

    def define(self, tensor: torch.Tensor) -> None:
        """Note that the memory of a tensor was written."""
        if self.has_values(tensor):
            return
        now = piece_of(tensor)
        if now.dense:
            for one in [one for one in self._written if one.touches(now)]:
                self._written.remove(one)
                now = Piece(min(one.start, now.start), max(one.end, now.end))
        self.defined = now.dense and now.end - now.start >= self.size_bytes
        self._written = [] if self.defined else [*self._written[1 - _MOST_PIECES :], now]

    def has_values(self, tensor: torch.Tensor) -> bool:
        """Return whether all memory of a tensor was written before."""
        if self.defined or not self._written:
            return self.defined
        piece = piece_of(tensor)
        return any(one == piece or one.contains(piece) for one in self._written)

    def forget(self) -> None:
        """Discard what is known of the contents: they may have been read and written."""
        self.hash = self.fill = self.pieces = self.readers = self.kernel_write = None
        self.reads += 1

    def escape(self) -> None:
        """Mark the memory as accessible without being observed."""
        self.outside = True
        self.forget()

    @property
    def alive(self) -> bool:
        """Whether its memory still exists."""
        return not self.ref.expired()


class Storages:
    """All storages that operators accessed."""

    def __init__(self) -> None:
        self._states: Dict[int, StorageState] = {}
        self._since_purge = 0
        self.epoch = 0
        """Number of calls of code that may access any memory and invalidates all known contents."""

    def of(self, tensor: torch.Tensor, born: int, defined: bool = True) -> StorageState:
        """Return the state of a tensor's memory; `born` and `defined` apply to new storages."""
        storage = untyped_storage(tensor)
        key = storage._cdata
        state = self._states.get(key)
        if state is None:
            self._since_purge += 1
            if self._since_purge >= _PURGE_EVERY:
                self.purge()
            state = StorageState(key, StorageWeakRef(storage), storage.nbytes(), defined)
            state.born, state.epoch = born, self.epoch
            # Another process may access shared memory; for CUDA tensors the answer is always True.
            state.outside = storage.is_shared() and not tensor.is_cuda
            self._states[key] = state
        else:
            # Kernels resize an empty output tensor.
            state.size_bytes = storage.nbytes()
            if state.epoch != self.epoch:
                state.epoch = self.epoch
                state.forget()
        return state

    def mark_accessed(self, key: int) -> None:
        """Mark a storage as accessed by unobserved code; called by any thread, so only a flag is set."""
        state = self._states.get(key)
        if state is not None:
            state.outside = True

    def purge(self) -> None:
        """Remove storages that were freed."""
        self._since_purge = 0
        gone: List[int] = [key for key, state in self._states.items() if not state.alive]
        for key in gone:
            del self._states[key]

    def clear(self) -> None:
        """Remove all states: memory was not tracked in the meantime."""
        self._states.clear()
        self._since_purge = 0

    def __len__(self) -> int:
        return len(self._states)


def covers(tensor: torch.Tensor, state: StorageState) -> bool:
    """Return whether a tensor covers its whole storage."""
    return tensor.numel() * tensor.element_size() == state.size_bytes


class Before:
    """State of a tensor before an operator wrote it."""

    def __init__(self, tensor: torch.Tensor, state: StorageState) -> None:
        self.tensor = tensor
        self.state = state
        self.defined = state.has_values(tensor)
        self.fill = state.fill
        self.kernel_write = state.kernel_write
        self.hash = state.hash
        self.reads = state.reads
        self.size_bytes = tensor.numel() * tensor.element_size()
        self.version = state.version
        self.whole = self.size_bytes == state.size_bytes
        self.copy: Optional[int] = None
        """Address of a copy of its contents, for CPU memory."""
        self.earlier: Optional[torch.Tensor] = None
        """Copy of its contents, for GPU memory."""
        self.packed: Optional[torch.Tensor] = None
        """Contiguous copy of its contents, for a strided slice in CPU memory."""


Inputs = Sequence[Tuple[torch.Tensor, StorageState]]


class Observation:
    """A tensor that an operator created or wrote. `tensor` is valid only inside `observe`."""

    operator: Operator
    func: Any
    arguments: Any
    keywords: Any
    place: Place
    path: Tuple[str, ...] = ()
    """Enclosing operators, outermost first (deep only)."""
    in_backward = False
    """Called by a backward pass."""
    view_of_torch = False
    """Called by the backward of a view that torch's own Python code took."""
    step = 0
    position = 0
    """Index among the operator's written tensors."""
    tensor: torch.Tensor
    layout: Layout
    scan: Scan
    size_bytes = 0
    fresh = True
    """True for new memory, False for a write to existing memory."""
    given = False
    """Whether the program passed this memory to the outermost operator as an output."""
    compared = False
    """Whether `scan.unchanged` is valid: the previous contents were available."""
    whole = True
    """Whether the tensor covers its whole storage."""
    packed = False
    """Whether `tensor` is a contiguous copy of the strided slice that was written."""
    state: StorageState
    was_defined = False
    """Whether the memory held values before this write."""
    was_fill: Optional["Observation"] = None
    """The fill that this write overwrote, if nothing else wrote in between."""
    was_kernel_write: Optional["Observation"] = None
    """The write of a generated kernel that this write overwrote."""
    was_reads = 0
    """Number of reads between the previous write and this one."""
    values_read = False
    """Whether an operator read what this fill wrote."""
    site: Optional[Site] = None
    """Call site in the source of the program, for fills."""
    node = -1
    number = 0
    """Index among the operators inside the outermost one, in start order; identifies it in a replay."""
    inputs: Inputs = ()
    """Tensors that the operator read, without those that it only overwrote."""
    input_hashes: Tuple[Optional[int], ...] = ()
    """Hashes of the inputs, if a pattern keeps the observation to compare others with it."""
    written_inside = False
    """Deep only: an inner operator wrote all of it and was observed separately."""

    def release(self) -> None:
        """Drop references to tensors, so that their memory can be freed."""
        tensor = self.tensor
        self._shape, self._dtype, self._device = tensor.shape, tensor.dtype, tensor.device
        self.tensor = self.arguments = self.keywords = None
        self.inputs = ()

    @property
    def shape(self) -> Tuple[int, ...]:
        """Of the tensor, also after `release`."""
        return tuple(self._shape if self.tensor is None else self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor, also after `release`."""
        return self._dtype if self.tensor is None else self.tensor.dtype

    @property
    def device(self) -> str:
        """Of the tensor, also after `release`."""
        return str(self._device if self.tensor is None else self.tensor.device)

    @property
    def computed(self) -> bool:
        """Whether the program computed it: not fills, random numbers, tensors inside operators or lists of tensors."""
        kind = self.operator
        return bool(
            self.fresh
            and self.inputs
            and not self.path
            and not (kind.fills or kind.random or kind.many)
        )

    @property
    def generated(self) -> bool:
        """Whether the program made it with an operator without tensor arguments, such as `arange` or `eye`."""
        kind = self.operator
        return bool(
            self.fresh
            and not self.inputs
            and not self.path
            and not (kind.fills or kind.random or kind.many or kind.copies)
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
