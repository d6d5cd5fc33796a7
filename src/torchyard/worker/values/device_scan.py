"""The scan of tensors on a GPU: many at once, and no waiting until somebody asks for the rows.

With Triton one launch looks at all of them (`device_launch`); without it, operators of torch do the
same in several passes. Rows say the same as a `Scan`, but for the hash: hashes are compared only
among tensors of one device.
"""

from typing import List, Optional, Sequence

import torch

from torchyard.worker.values.layouts import LAYOUTS
from torchyard.worker.values.scan import Scan

FIELDS = 8
"""Of a row: two halves of the hash, zeros, elements like the first, unchanged ones, bits in use, the
first element, and one that is not used, so that rows begin at multiples of 16 bytes."""
_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15
_SPREAD_UPPER = 0x2545F4914F6CDD1D


def scan_of_row(row: Sequence[int], count: int, bits: int) -> Scan:
    """A row that was copied to the CPU as a scan."""
    found = Scan()
    mask = (1 << bits) - 1
    found.hash = (row[0] * _SPREAD + row[1] * _SPREAD_UPPER + count) & _MASK
    found.count, found.zeros, found.like_first, found.unchanged = count, row[2], row[3], row[4]
    found.any_bits, found.first_bits = row[5] & mask, row[6] & mask
    return found


def hashes_of_rows(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The same hashes for many rows, as signed numbers."""
    return rows[:, 0] * (_SPREAD - (1 << 64)) + rows[:, 1] * _SPREAD_UPPER + counts


class Batch:
    """Tensors that are scanned together in every step; without their addresses."""


class DeviceScanner:
    """Looks at tensors of one device, with operators of torch."""

    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def rows(
        self, tensors: List[torch.Tensor], earlier: Optional[List[torch.Tensor]] = None
    ) -> torch.Tensor:
        """One row for each tensor, on the device; `earlier` has copies of the bits before."""
        found = []
        for place, tensor in enumerate(tensors):
            before = None if earlier is None else words_of(earlier[place])
            found.append(_row(words_of(tensor), before))
        return torch.stack(found)

    def batch(self, tensors: List[torch.Tensor]) -> Batch:  # noqa: ARG002
        """What is the same whenever tensors like these are scanned together."""
        return Batch()

    def new_rows(self, count: int) -> torch.Tensor:
        """Rows to be filled by `scan_into`."""
        return torch.empty((count, FIELDS), dtype=torch.int64, device=self.device)

    def scan_into(
        self,
        rows: torch.Tensor,
        first: int,
        batch: Batch,  # noqa: ARG002
        tensors: List[torch.Tensor],
        addresses: List[int],  # noqa: ARG002
    ) -> None:
        """Scan tensors that are like those of a batch into rows from `first` on."""
        rows[first : first + len(tensors)] = self.rows(tensors)

    def scan(self, tensor: torch.Tensor, earlier: Optional[torch.Tensor] = None) -> Scan:
        """One tensor, now: waits for the device."""
        rows = self.rows([tensor], None if earlier is None else [earlier])
        layout = LAYOUTS[tensor.dtype]
        count = tensor.numel() * layout.per_number
        return scan_of_row(rows[0].tolist(), count, layout.bits)

    def end_step(self) -> None:
        """What was asked for before the last call of this is done."""


def open_device_scanner(device: torch.device) -> DeviceScanner:
    """The quickest that this machine has for a device."""
    if device.type == "cuda":
        try:
            from torchyard.worker.values.device_launch import TritonScanner

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
    mixed = (words.to(torch.int64) + places * 0x9E3779B1) * _SPREAD_UPPER
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
            zero,
        ]
    )


def _any_bits(words: torch.Tensor) -> torch.Tensor:
    """Bits that any of them has: halves are joined until one is left."""
    while words.numel() > 1:
        half = words.numel() // 2
        joined = words[:half] | words[half : 2 * half]
        words = joined if words.numel() % 2 == 0 else torch.cat((joined, words[-1:]))
    return words[0].to(torch.int64)
