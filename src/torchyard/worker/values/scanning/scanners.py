"""Scans for the dispatch mode and the patterns, for tensors on CPU and GPU.

CPU memory is read in place. GPU tensors are scanned on the GPU, many at once, without synchronization until the rows
are needed: with Triton in one launch (`triton_scan.py`), otherwise with torch operators. Rarely needed data (range,
repetitions) are read from a copy on the CPU, which is kept until `forget`.
"""

import ctypes
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from torchyard.worker.values.scanning.cpu_scan import (
    LAYOUTS,
    Layout,
    Scan,
    Scanner,
    bits_in_use,
    bits_to_number,
    flat_memory,
)

WORDS: Dict[int, Any] = {
    8: ctypes.c_uint8,
    16: ctypes.c_uint16,
    32: ctypes.c_uint32,
    64: ctypes.c_uint64,
}
"""C types by width; `WORDS[32].from_address(address).value` reads one element."""
_THREE: Dict[torch.dtype, Any] = {
    torch.float64: ctypes.c_double * 3,
    torch.float32: ctypes.c_float * 3,
    torch.int64: ctypes.c_int64 * 3,
    torch.int32: ctypes.c_int32 * 3,
    torch.int16: ctypes.c_int16 * 3,
    torch.int8: ctypes.c_int8 * 3,
    torch.uint8: ctypes.c_uint8 * 3,
}


def first_three(tensor: torch.Tensor) -> Optional[Tuple[Any, Any, Any]]:
    """Return the first three numbers; None for dtypes without a C type."""
    three = _THREE.get(tensor.dtype)
    if three is None or tensor.numel() < 3:
        return None
    if not tensor.is_cpu:
        first, second, third = tensor.detach().reshape(-1)[:3].tolist()
        return first, second, third
    numbers = three.from_address(tensor.data_ptr())
    return numbers[0], numbers[1], numbers[2]


FIELDS = 8
"""Fields of a row: two halves of the hash, zeros, elements equal to the first, unchanged elements, bits
in use, the first element, and padding, so that rows begin at multiples of 16 bytes."""
_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15
_SPREAD_UPPER = 0x2545F4914F6CDD1D


def scan_of_row(row: Sequence[int], count: int, bits: int) -> Scan:
    """Convert a row on the CPU to a scan."""
    scan = Scan()
    mask = (1 << bits) - 1
    scan.hash = (row[0] * _SPREAD + row[1] * _SPREAD_UPPER + count) & _MASK
    scan.count, scan.zeros, scan.like_first, scan.unchanged = count, row[2], row[3], row[4]
    scan.any_bits, scan.first_bits = row[5] & mask, row[6] & mask
    return scan


def hashes_of_rows(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the hashes of many rows as signed integers."""
    return rows[:, 0] * (_SPREAD - (1 << 64)) + rows[:, 1] * _SPREAD_UPPER + counts


class Batch:
    """Tensors that are scanned together in every step, without their addresses."""


class DeviceScanner:
    """Scans tensors of one device with torch operators."""

    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._indices: Dict[Tuple[int, ...], torch.Tensor] = {}
        """Places of samples on the device."""

    def rows(
        self, tensors: List[torch.Tensor], earlier: Optional[List[torch.Tensor]] = None
    ) -> torch.Tensor:
        """Return one row per tensor, on the device; `earlier` has copies of the previous contents."""
        rows = []
        for place, tensor in enumerate(tensors):
            before = None if earlier is None else words_of(earlier[place])
            rows.append(_row(words_of(tensor), before))
        return torch.stack(rows)

    def batch(self, tensors: List[torch.Tensor]) -> Batch:  # noqa: ARG002
        """Return the data that can be reused for tensors of the same sizes."""
        return Batch()

    def new_rows(self, count: int) -> torch.Tensor:
        """Return rows for `scan_into`."""
        return torch.empty((count, FIELDS), dtype=torch.int64, device=self.device)

    def scan_into(
        self,
        rows: torch.Tensor,
        first: int,
        batch: Batch,  # noqa: ARG002
        tensors: List[torch.Tensor],
        addresses: List[int],  # noqa: ARG002
    ) -> None:
        """Scan tensors that match a batch into the rows from `first` on."""
        rows[first : first + len(tensors)] = self.rows(tensors)

    def scan(self, tensor: torch.Tensor, earlier: Optional[torch.Tensor] = None) -> Scan:
        """Scan one tensor and wait for the device."""
        rows = self.rows([tensor], None if earlier is None else [earlier])
        layout = LAYOUTS[tensor.dtype]
        count = tensor.numel() * layout.per_number
        return scan_of_row(rows[0].tolist(), count, layout.bits)

    def scan_sampled(
        self, tensor: torch.Tensor, earlier: Optional[torch.Tensor], places: List[int]
    ) -> Tuple[Scan, List[int]]:
        """Scan one tensor and read some of its elements, with one synchronization."""
        row = self.rows([tensor], None if earlier is None else [earlier])[0]
        index = self._indices.get(tuple(places))
        if index is None:
            if len(self._indices) >= _MOST_INDICES:
                self._indices.clear()
            index = torch.tensor(places, dtype=torch.int64, device="cpu").to(self.device)
            self._indices[tuple(places)] = index
        elements = words_of(tensor).index_select(0, index).to(torch.int64)
        numbers: List[int] = torch.cat((row, elements)).tolist()
        layout = LAYOUTS[tensor.dtype]
        mask = (1 << layout.bits) - 1
        count = tensor.numel() * layout.per_number
        return (
            scan_of_row(numbers[:FIELDS], count, layout.bits),
            [number & mask for number in numbers[FIELDS:]],
        )

    def end_step(self) -> None:
        """Handle the end of a step; scans of the previous step have finished."""


def open_device_scanner(device: torch.device) -> DeviceScanner:
    """Return the fastest available scanner for a device."""
    if device.type == "cuda":
        try:
            from torchyard.worker.values.scanning.triton_scan import TritonScanner

            return TritonScanner(device)
        except Exception:  # Triton is missing or does not support this GPU
            pass
    return DeviceScanner(device)


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat view of a dense tensor as integers of its element width."""
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
            bits_in_use(words),
            words[0].to(torch.int64),
            zero,
        ]
    )


_address = torch._C.TensorBase.data_ptr
_MOST_INDICES = 1024
PROBES = tuple(place * 0.6180339887498949 % 1 for place in range(1, 9))
"""Relative positions of probes: multiples of the golden ratio do not align with any shape."""


def _sampled_places(tensor: torch.Tensor, count: int) -> List[int]:
    """Return the elements that patterns read: probes, and the neighbours of the first element."""
    places = [int(share * count) for share in PROBES]
    inner = count // max(1, tensor.numel())
    for size in reversed(tensor.shape):
        if size > 1:
            places.append(inner)
        inner *= size
    return places


class Scanners:
    """Scanners of all devices."""

    def __init__(self, memory: Scanner) -> None:
        self.memory = memory
        self._devices: Dict[torch.device, DeviceScanner] = {}
        self._copies: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}
        self._samples: Dict[int, Tuple[torch.Tensor, Dict[int, int]]] = {}
        """Elements of GPU tensors that were read together with their scan."""
        self._scans: Dict[int, Tuple[torch.Tensor, Scan]] = {}
        """Scans of GPU tensors that are requested next."""

    def can_scan(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor can be scanned in place."""
        return (
            (tensor.is_cpu or tensor.is_cuda)
            and tensor.layout is torch.strided
            and tensor.dtype in LAYOUTS
            and not tensor.is_nested
            and tensor.numel() > 0
            and not (tensor.is_conj() or tensor.is_neg())
            and (tensor.is_contiguous() or flat_memory(tensor) is not None)
        )

    def on(self, device: torch.device) -> DeviceScanner:
        """Return the scanner of a GPU."""
        scanner = self._devices.get(device)
        if scanner is None:
            scanner = self._devices[device] = open_device_scanner(device)
        return scanner

    def scan(
        self,
        tensor: torch.Tensor,
        layout: Layout,
        before: Optional[int] = None,
        earlier: Optional[torch.Tensor] = None,
    ) -> Scan:
        """Scan in one pass; the previous contents are at a CPU address or in a GPU tensor."""
        if tensor.is_cpu:
            return self.memory.scan(_address(tensor), before, tensor.numel(), layout)
        entry = self._scans.pop(id(tensor), None)
        if entry is not None and earlier is None:
            self._samples.pop(id(tensor), None)
            return entry[1]
        places = _sampled_places(tensor, tensor.numel() * layout.per_number)
        scan, elements = self.on(tensor.device).scan_sampled(tensor, earlier, places)
        self._samples[id(tensor)] = (tensor, dict(zip(places, elements)))
        return scan

    def scan_ahead(self, tensors: Sequence[torch.Tensor], least_bytes: int) -> None:
        """Scan GPU tensors with one launch and one synchronization, for the next `scan` or `hash` of each.

        `forget_scans` must be called before their memory may be written.
        """
        by_device: Dict[torch.device, List[torch.Tensor]] = {}
        for tensor in tensors:
            if (
                tensor.is_cuda
                and tensor.numel() * tensor.element_size() >= least_bytes
                and self.can_scan(tensor)
            ):
                by_device.setdefault(tensor.device, []).append(tensor)
        for device, group in by_device.items():
            if len(group) < 2:
                continue
            for tensor, row in zip(group, self.on(device).rows(group).tolist()):
                layout = LAYOUTS[tensor.dtype]
                count = tensor.numel() * layout.per_number
                self._scans[id(tensor)] = (tensor, scan_of_row(row, count, layout.bits))

    def forget_scans(self) -> None:
        """Drop scans that were not requested."""
        if self._scans:
            self._scans.clear()

    def hash(self, tensor: torch.Tensor, layout: Layout) -> int:
        """Return the hash of a scan."""
        if tensor.is_cpu:
            return self.memory.hash(_address(tensor), tensor.numel(), layout)
        entry = self._scans.pop(id(tensor), None)
        return int((self.on(tensor.device).scan(tensor) if entry is None else entry[1]).hash)

    def count(self, tensor: torch.Tensor, layout: Layout, bits: int) -> int:
        """Return the number of elements that are equal to a real number, given by its bits."""
        if not tensor.is_cpu:
            return int((tensor == bits_to_number(bits, layout)).sum())
        most = (1 << layout.bits) - 1
        sign = 1 << (layout.bits - 1) if layout.is_float else 0
        mask = most ^ sign if bits in (0, sign) else most  # zeros of both signs are equal
        return self.memory.count(_address(tensor), tensor.numel(), layout, mask, bits & mask)

    def number_range(self, tensor: torch.Tensor, layout: Layout) -> Tuple[float, float]:
        """Return the smallest and largest number; NaN is sorted beyond infinity."""
        own = self.host(tensor)
        return self.memory.number_range(_address(own), own.numel(), layout)

    def whole_numbers(self, tensor: torch.Tensor, layout: Layout) -> bool:
        """Return whether no floating-point number has a fraction."""
        own = self.host(tensor)
        return self.memory.whole_numbers(_address(own), own.numel(), layout)

    def repeats(
        self, tensor: torch.Tensor, start_bytes: int, size_bytes: int, period_bytes: int
    ) -> bool:
        """Return whether a part of the memory repeats with a period."""
        return self.memory.repeats(
            _address(self.host(tensor)) + start_bytes, size_bytes, period_bytes
        )

    def constant_runs(self, tensor: torch.Tensor, run: int) -> bool:
        """Return whether all elements of each run are equal."""
        own = self.host(tensor)
        return self.memory.constant_runs(_address(own), own.numel(), own.element_size(), run)

    def element(self, tensor: torch.Tensor, place: int, bits: int) -> int:
        """Return the bits of one element, indexed in memory order."""
        if tensor.is_cpu:
            address = _address(tensor) + place * (bits // 8)
            return int(WORDS[bits].from_address(address).value)
        sample = self._samples.get(id(tensor))
        if sample is not None and place in sample[1]:
            return sample[1][place]
        return int(words_of(tensor)[place].item()) & ((1 << bits) - 1)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor itself, or a copy on the CPU with the same strides."""
        if tensor.is_cpu:
            return tensor
        entry = self._copies.get(id(tensor))
        if entry is None:
            own = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )
            entry = self._copies[id(tensor)] = (tensor, own.copy_(tensor.detach()))
        return entry[1]

    def forget(self) -> None:
        """Drop the copies: the tensors will be written again."""
        if self._copies:
            self._copies.clear()
        if self._samples:
            self._samples.clear()
