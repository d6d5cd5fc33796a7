"""Launches of the fused scan: tables of tensors go to the GPU without waiting, rows stay there.

A launch costs the program time only on the CPU, so this is about microseconds: rows come out of one
zeroed block, addresses go through one block of pinned memory, what a batch has in common with the
same batch of the step before stays on the GPU, and the compiled kernel is started directly.
"""

import ctypes
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker.values import device_kernel
from torchyard.worker.values.device_scan import FIELDS, Batch, DeviceScanner
from torchyard.worker.values.layouts import LAYOUTS

_PROGRAMS_PER_PROCESSOR = 8
_WARPS = 16
_UPLOAD_WORDS = 1 << 18
_POOL_ROWS = 8192
_ALIGN = 16
_address = torch._C.TensorBase.data_ptr
"""Not `Tensor.data_ptr`, which is watched for programs that use addresses."""


class _Group:
    """Tensors of a batch that one launch looks at: those with elements of one width."""

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
    """A batch with its groups, whose tables are on the device once they were used."""

    def __init__(self, groups: List[_Group], count: int) -> None:
        self.groups = groups
        self.count = count


class TritonScanner(DeviceScanner):
    """One launch for each width of elements."""

    name = "triton"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._programs = processors * _PROGRAMS_PER_PROCESSOR
        self._pinned = torch.empty(_UPLOAD_WORDS, dtype=torch.int64, device="cpu", pin_memory=True)
        self._words = (ctypes.c_int64 * _UPLOAD_WORDS).from_address(_address(self._pinned))
        self._uploaded = torch.empty(_UPLOAD_WORDS, dtype=torch.int64, device=device)
        self._used_words = 0
        self._last_word = _UPLOAD_WORDS // 2
        self._pool = torch.empty((0, FIELDS), dtype=torch.int64, device=device)
        self._used_rows = 0
        self._compiled: Dict[Tuple[int, bool, bool], Any] = {}
        self._directly = True

    def batch(
        self, tensors: List[torch.Tensor], earlier: Optional[List[torch.Tensor]] = None
    ) -> TritonBatch:
        """What is the same whenever tensors like these are scanned together."""
        groups: Dict[Tuple[int, bool], _Group] = {}
        for place, tensor in enumerate(tensors):
            layout = LAYOUTS[tensor.dtype]
            kind = (layout.bits, _address(tensor) % _ALIGN == 0)
            group = groups.get(kind)
            if group is None:
                group = groups[kind] = _Group(*kind)
            count = tensor.numel() * layout.per_number
            group.chunks += -(-count // device_kernel.CHUNK)
            group.places.append(place)
            group.counts.append(count)
            group.ends.append(group.chunks)
            group.before.append(0 if earlier is None else _address(earlier[place]))
        return TritonBatch(list(groups.values()), len(tensors))

    def rows(
        self, tensors: List[torch.Tensor], earlier: Optional[List[torch.Tensor]] = None
    ) -> torch.Tensor:
        """One row for each tensor, on the device; `earlier` has copies of the bits before."""
        addresses = [_address(tensor) for tensor in tensors]
        return self._scan(self.batch(tensors, earlier), addresses, earlier is not None)

    def rows_of_batch(
        self, batch: Batch, tensors: List[torch.Tensor], addresses: List[int]
    ) -> torch.Tensor:
        """The same for tensors that are like those of a batch."""
        if not isinstance(batch, TritonBatch):
            return self.rows(tensors)
        for group in batch.groups:
            # An address that is no multiple would be a fault on the device, not a slow read.
            if group.aligned and any(addresses[place] % _ALIGN for place in group.places):
                return self.rows(tensors)
        return self._scan(batch, addresses, False)

    def end_step(self) -> None:
        """Go on in the other half of the uploads, which was used in the step before this one."""
        half = _UPLOAD_WORDS // 2
        first = self._last_word == half
        self._used_words = half if first else 0
        self._last_word = _UPLOAD_WORDS if first else half

    def _scan(self, batch: TritonBatch, addresses: List[int], compared: bool) -> torch.Tensor:
        rows = self._new_rows(batch.count)
        if torch.cuda.current_device() == self.device.index:
            self._launch_all(batch, addresses, rows, compared)
        else:
            with torch.cuda.device(self.device):
                self._launch_all(batch, addresses, rows, compared)
        return rows

    def _launch_all(
        self, batch: TritonBatch, addresses: List[int], rows: torch.Tensor, compared: bool
    ) -> None:
        for group in batch.groups:
            if group.table is None:
                group.table = self._upload(group.words).clone()
            chosen = addresses
            if len(group.places) != len(addresses):
                chosen = [addresses[place] for place in group.places]
            kind = (group.bits, compared, group.aligned)
            programs = min(group.chunks, self._programs)
            memory = (self._upload(chosen), group.table, rows)
            self._launch(kind, programs, memory, (len(chosen), group.chunks))

    def _new_rows(self, count: int) -> torch.Tensor:
        start = self._used_rows
        if start + count > len(self._pool):
            size = (max(count, _POOL_ROWS), FIELDS)
            self._pool = torch.zeros(size, dtype=torch.int64, device=self.device)
            start = 0
        self._used_rows = start + count
        return self._pool[start : start + count]

    def _upload(self, words: List[int]) -> torch.Tensor:
        if self._used_words + len(words) > self._last_word:
            torch.cuda.synchronize(self.device)
            self._used_words = self._last_word - _UPLOAD_WORDS // 2
        start = self._used_words
        end = start + len(words)
        self._used_words = end + end % 2  # the next one begins at a multiple of 16 bytes, too
        self._words[start:end] = words  # type: ignore[assignment]
        uploaded = self._uploaded[start:end]
        uploaded.copy_(self._pinned[start:end], non_blocking=True)
        return uploaded

    def _launch(
        self,
        kind: Tuple[int, bool, bool],
        programs: int,
        memory: Tuple[torch.Tensor, ...],
        numbers: Tuple[int, int],
    ) -> None:
        constants = (*kind, device_kernel.BLOCK, device_kernel.CHUNK)
        compiled = self._compiled.get(kind) if self._directly else None
        if compiled is not None:
            # Without looking at the types of the arguments, which takes longer than the start. So do
            # questions about tensors: addresses are enough.
            try:
                addresses = map(_address, memory)
                compiled[(programs, 1, 1)](*addresses, *numbers, *constants)
                return
            except Exception:  # this Triton starts compiled kernels in another way
                self._directly = False
        self._compiled[kind] = device_kernel.scan_chunks[(programs,)](
            *memory, *numbers, *constants, num_warps=_WARPS
        )
