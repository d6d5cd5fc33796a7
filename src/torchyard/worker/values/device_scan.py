"""The scan of tensors on a GPU: many at once, and no waiting until somebody asks for the rows.

With Triton one launch looks at all of them; without it, operators of torch do the same in several
passes. Rows say the same as a `Scan`, but for the hash: hashes are compared only among tensors of
one device.
"""

from typing import Any, Dict, List, Optional, Sequence

import torch

from torchyard.worker.values.layouts import LAYOUTS
from torchyard.worker.values.scan import Scan

FIELDS = 7
_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15
_PROGRAMS_PER_PROCESSOR = 8
_address = torch._C.TensorBase.data_ptr
"""Not `Tensor.data_ptr`, which is watched for programs that use addresses."""


def scan_of_row(row: Sequence[int], count: int, bits: int) -> Scan:
    """A row that was copied to the CPU as a scan."""
    found = Scan()
    mask = (1 << bits) - 1
    found.hash = hash_of_row(row[0], row[1], count)
    found.count, found.zeros, found.like_first, found.unchanged = count, row[2], row[3], row[4]
    found.any_bits, found.first_bits = row[5] & mask, row[6] & mask
    return found


def hash_of_row(lower: int, upper: int, count: int) -> int:
    """One number of the two halves."""
    return (lower * _SPREAD + upper * 0x2545F4914F6CDD1D + count) & _MASK


class DeviceScanner:
    """Looks at tensors of one device."""

    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def rows(
        self, tensors: List[torch.Tensor], earlier: Optional[List[torch.Tensor]] = None
    ) -> torch.Tensor:
        """One row for each tensor, on the device; `earlier` has copies of the bits before."""
        found = []
        for place, tensor in enumerate(tensors):
            words = words_of(tensor)
            before = None if earlier is None else words_of(earlier[place])
            found.append(_row(words, before))
        return torch.stack(found)

    def scan(self, tensor: torch.Tensor, earlier: Optional[torch.Tensor] = None) -> Scan:
        """One tensor, now: waits for the device."""
        rows = self.rows([tensor], None if earlier is None else [earlier])
        layout = LAYOUTS[tensor.dtype]
        count = tensor.numel() * layout.per_number
        return scan_of_row(rows[0].tolist(), count, layout.bits)


class TritonScanner(DeviceScanner):
    """The same with one launch for each width of numbers."""

    name = "triton"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        from torchyard.worker.values import device_kernel

        self._kernel: Any = device_kernel
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._programs = processors * _PROGRAMS_PER_PROCESSOR

    def rows(
        self, tensors: List[torch.Tensor], earlier: Optional[List[torch.Tensor]] = None
    ) -> torch.Tensor:
        """One row for each tensor, on the device; `earlier` has copies of the bits before."""
        rows = torch.zeros((len(tensors), FIELDS), dtype=torch.int64, device=self.device)
        groups: Dict[int, List[int]] = {}
        for place, tensor in enumerate(tensors):
            groups.setdefault(LAYOUTS[tensor.dtype].bits, []).append(place)
        for bits, places in groups.items():
            self._launch(rows, bits, places, tensors, earlier)
        return rows

    def _launch(
        self,
        rows: torch.Tensor,
        bits: int,
        places: List[int],
        tensors: List[torch.Tensor],
        earlier: Optional[List[torch.Tensor]],
    ) -> None:
        kernel = self._kernel
        chunk = kernel.CHUNK
        addresses, counts, ends, befores = [], [], [], []
        chunks = 0
        for place in places:
            tensor = tensors[place]
            count = tensor.numel() * LAYOUTS[tensor.dtype].per_number
            chunks += -(-count // chunk)
            addresses.append(_address(tensor))
            counts.append(count)
            ends.append(chunks)
            befores.append(0 if earlier is None else _address(earlier[place]))
        table = torch.tensor(addresses + counts + ends + places + befores, dtype=torch.int64)
        # A small copy from pageable memory is put into the queue at once; nothing is waited for.
        table = table.to(self.device, non_blocking=True)
        with torch.cuda.device(self.device):
            kernel.scan_chunks[(min(chunks, self._programs),)](
                table,
                rows,
                len(places),
                chunks,
                BITS=bits,
                COMPARED=earlier is not None,
                BLOCK=kernel.BLOCK,
                CHUNK=chunk,
                num_warps=8,
            )


def open_device_scanner(device: torch.device) -> DeviceScanner:
    """The quickest that this machine has for a device."""
    if device.type == "cuda":
        try:
            return TritonScanner(device)
        except Exception:  # Triton is missing, or does not know this GPU
            pass
    return DeviceScanner(device)


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor in its own order, as integers of the width of its elements."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    kinds = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
    return flat.view(kinds[LAYOUTS[tensor.dtype].bits])


def _row(words: torch.Tensor, earlier: Optional[torch.Tensor]) -> torch.Tensor:
    places = torch.arange(words.numel(), device=words.device, dtype=torch.int64)
    mixed = (words.to(torch.int64) + places * 0x9E3779B1) * 0x2545F4914F6CDD1D
    mixed ^= mixed >> 29
    zero = torch.zeros((), dtype=torch.int64, device=words.device)
    return torch.stack(
        [
            mixed.sum(),
            (mixed >> 17).sum(),
            (words == 0).sum(),
            (words == words[0]).sum(),
            zero if earlier is None else (words == earlier).sum(),
            _any_bits(words),
            words[0].to(torch.int64),
        ]
    )


def _any_bits(words: torch.Tensor) -> torch.Tensor:
    """Bits that any of them has: halves are joined until one is left."""
    while words.numel() > 1:
        half = words.numel() // 2
        joined = words[:half] | words[half : 2 * half]
        words = joined if words.numel() % 2 == 0 else torch.cat((joined, words[-1:]))
    return words[0].to(torch.int64)
