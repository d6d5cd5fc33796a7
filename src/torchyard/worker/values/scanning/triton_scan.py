"""Launch the fused GPU scan without synchronization; the rows stay on the GPU until needed.

A launch costs the program CPU time, so microseconds matter: rows of a whole step are one block, the
GPU reads addresses from pinned memory, constant data of a batch stay on the GPU, and the compiled
kernel is launched directly. Imported only where Triton is installed.
"""

import ctypes
from contextlib import nullcontext
from typing import Any, Dict, List, Optional, Tuple

import torch
import triton
import triton.language as tl

from torchyard.worker.values.scanning.cpu_scan import LAYOUTS
from torchyard.worker.values.scanning.scanners import FIELDS, Batch, DeviceScanner

BLOCKS = {8: 4096, 16: 4096, 32: 2048, 64: 1024}
"""Elements that a program processes at once, by width: each of its threads loads 16 bytes (8 of the narrowest)."""
CHUNK = 1 << 16
"""Elements of one tensor that a program processes before it takes the next chunk."""


@triton.jit
def _either(left, right):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    return left | right


@triton.jit(do_not_specialize=["tensors", "chunks"])
def scan_chunks(  # type: ignore[no-untyped-def] # noqa: ANN201
    addresses,  # noqa: ANN001
    table,  # noqa: ANN001
    rows,  # noqa: ANN001
    tensors,  # noqa: ANN001
    chunks,  # noqa: ANN001
    BITS: tl.constexpr,  # noqa: N803
    COMPARED: tl.constexpr,  # noqa: N803
    ALIGNED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
):
    """Add chunks of tensors to their rows.

    `table` has four columns of `tensors` entries: elements, the number of the last chunk plus one,
    the row, and the address of the earlier bits. With ALIGNED all addresses are multiples
    of 16. A row has eight fields: two halves of the hash, zeros, elements equal to the first,
    unchanged elements, bits in use, the first element, and padding.
    """
    for chunk in range(tl.program_id(0), chunks, tl.num_programs(0)):
        # Find the tensor of this chunk by binary search.
        low = 0
        high = tensors - 1
        while low < high:
            middle = (low + high) // 2
            if tl.load(table + tensors + middle) > chunk:
                high = middle
            else:
                low = middle + 1
        began = tl.load(table + tensors + low - 1, mask=low > 0, other=0)
        count = tl.load(table + low)
        row = tl.load(table + 2 * tensors + low)
        address = tl.load(addresses + low)
        earlier_address = tl.load(table + 3 * tensors + low)
        if BITS == 8:
            memory = address.to(tl.pointer_type(tl.uint8))
            earlier = earlier_address.to(tl.pointer_type(tl.uint8))
        elif BITS == 16:
            memory = address.to(tl.pointer_type(tl.uint16))
            earlier = earlier_address.to(tl.pointer_type(tl.uint16))
        elif BITS == 32:
            memory = address.to(tl.pointer_type(tl.uint32))
            earlier = earlier_address.to(tl.pointer_type(tl.uint32))
        else:
            memory = address.to(tl.pointer_type(tl.uint64))
            earlier = earlier_address.to(tl.pointer_type(tl.uint64))
        first = tl.load(memory)
        start = (chunk - began) * CHUNK
        memory += start
        earlier += start
        if ALIGNED:
            memory = tl.multiple_of(memory, 16)
        remaining = tl.minimum(count - start, CHUNK).to(tl.int32)
        # Positions are mixed in, so that the hash depends on the order.
        inside_block = tl.arange(0, BLOCK)
        position = (inside_block.to(tl.uint32) + start.to(tl.uint32)) * 0x9E3779B1
        lower = tl.zeros((BLOCK,), dtype=tl.uint32)
        upper = tl.zeros((BLOCK,), dtype=tl.uint32)
        tally = tl.zeros((BLOCK,), dtype=tl.int32)
        same = tl.zeros((BLOCK,), dtype=tl.int32)
        used = tl.zeros((BLOCK,), dtype=tl.uint64 if BITS == 64 else tl.uint32)
        factor = tl.full((BLOCK,), 0xC2B2AE3D, tl.uint32)
        whole = remaining // BLOCK
        for block in range(whole):
            words = tl.load(memory + block * BLOCK + inside_block)
            if BITS == 64:
                mixed = (words.to(tl.uint32) + position) ^ (
                    (words >> 32).to(tl.uint32) * 0x85EBCA77
                )
            else:
                mixed = words.to(tl.uint32) + position
            product = mixed * factor
            over = tl.umulhi(mixed, factor)
            lower += product ^ over
            upper += over ^ (product >> 15)
            # The lower half counts zeros, the upper half elements equal to the first.
            tally += (words == 0).to(tl.int32) + ((words == first).to(tl.int32) << 16)
            used |= words.to(tl.uint64 if BITS == 64 else tl.uint32)
            if COMPARED:
                same += (words == tl.load(earlier + block * BLOCK + inside_block)).to(tl.int32)
            position += BLOCK * 0x9E3779B1 & 0xFFFFFFFF
        if whole * BLOCK < remaining:
            places = whole * BLOCK + inside_block
            inside = places < remaining
            words = tl.load(memory + places, mask=inside, other=0)
            if BITS == 64:
                mixed = (words.to(tl.uint32) + position) ^ (
                    (words >> 32).to(tl.uint32) * 0x85EBCA77
                )
            else:
                mixed = words.to(tl.uint32) + position
            product = mixed * factor
            over = tl.umulhi(mixed, factor)
            lower += tl.where(inside, product ^ over, 0)
            upper += tl.where(inside, over ^ (product >> 15), 0)
            tally += (inside & (words == 0)).to(tl.int32)
            tally += (inside & (words == first)).to(tl.int32) << 16
            used |= words.to(tl.uint64 if BITS == 64 else tl.uint32)
            if COMPARED:
                was = tl.load(earlier + places, mask=inside, other=0)
                same += (inside & (words == was)).to(tl.int32)
        result = rows + row * 8
        tl.atomic_add(result, tl.sum(lower.to(tl.int64)), sem="relaxed")
        tl.atomic_add(result + 1, tl.sum(upper.to(tl.int64)), sem="relaxed")
        tl.atomic_add(result + 2, tl.sum(tally & 0xFFFF).to(tl.int64), sem="relaxed")
        tl.atomic_add(result + 3, tl.sum(tally >> 16).to(tl.int64), sem="relaxed")
        if COMPARED:
            tl.atomic_add(result + 4, tl.sum(same).to(tl.int64), sem="relaxed")
        tl.atomic_or(result + 5, tl.reduce(used, 0, _either).to(tl.int64), sem="relaxed")
        if chunk == began:
            tl.store(result + 6, first.to(tl.int64))


_PROGRAMS_PER_PROCESSOR = 8
_WARPS = 16
_PINNED_WORDS = 1 << 18
_WORD_BYTES = 8
_ALIGN = 16
_NOTHING = nullcontext()
_stream = torch._C._cuda_getCurrentRawStream
_address = torch._C.TensorBase.data_ptr
"""Not `Tensor.data_ptr`, which `unobserved.py` replaces."""


class _Group:
    """Tensors of a batch with one element width, scanned by one launch."""

    __slots__ = ("aligned", "before", "bits", "chunks", "counts", "ends", "places", "table")

    def __init__(self, bits: int, aligned: bool) -> None:
        self.bits = bits
        self.aligned = aligned
        self.places: List[int] = []
        self.counts: List[int] = []
        self.ends: List[int] = []
        self.before: List[int] = []
        self.chunks = 0
        self.table: Optional[torch.Tensor] = None

    @property
    def words(self) -> List[int]:
        """The table of the launch."""
        return self.counts + self.ends + self.places + self.before


class TritonBatch(Batch):
    """A batch with its groups; their tables are copied to the device on first use."""

    def __init__(self, groups: List[_Group], count: int) -> None:
        self.groups = groups
        self.count = count


class TritonScanner(DeviceScanner):
    """Scanner with one launch per element width."""

    name = "triton"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._programs = processors * _PROGRAMS_PER_PROCESSOR
        self._pinned = torch.empty(_PINNED_WORDS, dtype=torch.int64, device="cpu", pin_memory=True)
        self._pinned_at = _address(self._pinned)
        self._words = (ctypes.c_int64 * _PINNED_WORDS).from_address(self._pinned_at)
        self._used_words = 0
        self._last_word = _PINNED_WORDS // 2
        self._runners: Dict[Any, Any] = {}
        self._directly = True

    def batch(
        self, tensors: List[torch.Tensor], earlier: Optional[List[torch.Tensor]] = None
    ) -> TritonBatch:
        """Return the data that can be reused for tensors of the same sizes."""
        groups: Dict[Tuple[int, bool], _Group] = {}
        for place, tensor in enumerate(tensors):
            layout = LAYOUTS[tensor.dtype]
            kind = (layout.bits, _address(tensor) % _ALIGN == 0)
            group = groups.get(kind)
            if group is None:
                group = groups[kind] = _Group(*kind)
            count = tensor.numel() * layout.per_number
            group.chunks += -(-count // CHUNK)
            group.places.append(place)
            group.counts.append(count)
            group.ends.append(group.chunks)
            group.before.append(0 if earlier is None else _address(earlier[place]))
        return TritonBatch(list(groups.values()), len(tensors))

    def rows(
        self, tensors: List[torch.Tensor], earlier: Optional[List[torch.Tensor]] = None
    ) -> torch.Tensor:
        """Return one row per tensor, on the device; `earlier` has copies of the previous contents."""
        addresses = [_address(tensor) for tensor in tensors]
        return self._scan(self.batch(tensors, earlier), addresses, earlier is not None)

    def new_rows(self, count: int) -> torch.Tensor:
        """Return rows for `scan_into`."""
        return torch.zeros((count, FIELDS), dtype=torch.int64, device=self.device)

    def scan_into(
        self,
        rows: torch.Tensor,
        first: int,
        batch: Batch,
        tensors: List[torch.Tensor],
        addresses: List[int],
    ) -> None:
        """Scan tensors that match a batch into the rows from `first` on."""
        if not isinstance(batch, TritonBatch) or not _aligned_as(batch, addresses):
            rows[first : first + len(tensors)] = self.rows(tensors)
            return
        with self._current():
            self._launch_all(batch, addresses, rows, first, False)

    def end_step(self) -> None:
        """Switch to the other half of the pinned memory, which the previous step used."""
        half = _PINNED_WORDS // 2
        first = self._last_word == half
        self._used_words = half if first else 0
        self._last_word = _PINNED_WORDS if first else half

    def _current(self) -> Any:
        if torch.cuda.current_device() == self.device.index:
            return _NOTHING
        return torch.cuda.device(self.device)

    def _scan(self, batch: TritonBatch, addresses: List[int], compared: bool) -> torch.Tensor:
        rows = self.new_rows(batch.count)
        with self._current():
            self._launch_all(batch, addresses, rows, 0, compared)
        return rows

    def _launch_all(
        self,
        batch: TritonBatch,
        addresses: List[int],
        rows: torch.Tensor,
        first: int,
        compared: bool,
    ) -> None:
        for group in batch.groups:
            if group.table is None:
                group.table = self._to_device(group.words)
            chosen = addresses
            if len(group.places) != len(addresses):
                chosen = [addresses[place] for place in group.places]
            if not self._started(group, group.table, chosen, rows, first, compared):
                self._launch(group, group.table, chosen, rows[first:], compared)

    def _pin(self, words: List[int]) -> int:
        """Write words to pinned memory, which the device reads; return the address."""
        if self._used_words + len(words) > self._last_word:
            torch.cuda.synchronize(self.device)
            self._used_words = self._last_word - _PINNED_WORDS // 2
        start = self._used_words
        end = start + len(words)
        self._used_words = end + end % 2  # keep the next start at a multiple of 16 bytes
        self._words[start:end] = words  # type: ignore[assignment]
        return self._pinned_at + start * _WORD_BYTES

    def _started(
        self,
        group: _Group,
        table: torch.Tensor,
        addresses: List[int],
        rows: torch.Tensor,
        first: int,
        compared: bool,
    ) -> bool:
        """Launch the compiled kernel directly, because Triton's argument processing takes longer."""
        if not self._directly:
            return False
        programs = min(group.chunks, self._programs)
        kind = (group.bits, compared, group.aligned)
        try:
            runner = self._runners.get((kind, programs))
            if runner is None:
                compiled = self._launch(group, table, [], rows, compared)
                runner = self._runners[kind, programs] = compiled[(programs, 1, 1)]
            runner(
                self._pin(addresses),
                _address(table),
                _address(rows) + first * FIELDS * _WORD_BYTES,
                len(addresses),
                group.chunks,
                *kind,
                BLOCKS[group.bits],
                CHUNK,
                stream=_stream(self.device.index),
            )
        except Exception:  # this version of Triton has a different launch interface
            self._directly = False
        return self._directly

    def _launch(
        self,
        group: _Group,
        table: torch.Tensor,
        addresses: List[int],
        rows: torch.Tensor,
        compared: bool,
    ) -> Any:
        """Launch with Triton; without addresses the kernel is only compiled."""
        there = self._to_device(addresses) if addresses else table
        return scan_chunks[(min(group.chunks, self._programs),)](
            there,
            table,
            rows,
            len(addresses),
            group.chunks if addresses else 0,
            group.bits,
            compared,
            group.aligned,
            BLOCKS[group.bits],
            CHUNK,
            num_warps=_WARPS,
        )

    def _to_device(self, words: List[int]) -> torch.Tensor:
        table = torch.tensor(words, dtype=torch.int64, device="cpu")
        # A small copy from pageable memory is queued at once, without synchronization.
        return table.to(self.device, non_blocking=True)


def _aligned_as(batch: TritonBatch, addresses: List[int]) -> bool:
    """Return whether addresses have the alignment that the batch requires."""
    for group in batch.groups:
        if group.aligned:
            for place in group.places:
                if addresses[place] % _ALIGN:
                    return False
    return True
