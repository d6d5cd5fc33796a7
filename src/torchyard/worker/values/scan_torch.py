"""The scan of memory with torch operators, for machines without a C compiler.

Says the same as scan.c, but for the hash, which is another one: hashes are compared only among each
other, inside one process. Several passes in place of one: measured 0.6 GB/s where scan.c has 7 (float32, one Neoverse-N1 core).
"""

import ctypes
from typing import Any, Dict, Optional, Tuple

import torch

from torchyard.worker.values.layouts import Layout, ordered_to_number
from torchyard.worker.values.scan import Scan

_CHUNK = 1 << 18
"""Elements at a time: what is computed on the way stays in a cache, and memory stays bounded."""
_WORDS: Dict[int, Tuple[Any, torch.dtype]] = {
    8: (ctypes.c_uint8, torch.uint8),
    16: (ctypes.c_uint16, torch.int16),
    32: (ctypes.c_uint32, torch.int32),
    64: (ctypes.c_uint64, torch.int64),
}
_MASK = (1 << 64) - 1
# Odd multipliers of 64 bits, as signed numbers, which is how torch has them.
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = 0xBF58476D1CE4E5B9 - (1 << 64)


def _words(address: int, count: int, bits: int) -> torch.Tensor:
    """The memory as integers of a width, without a copy."""
    word, dtype = _WORDS[bits]
    return torch.frombuffer((word * count).from_address(address), dtype=dtype)


class TorchScanner:
    """Scans memory of the CPU with operators of torch."""

    name = "torch"

    def __init__(self) -> None:
        places = torch.arange(1, _CHUNK + 1, device="cpu")
        keys = places * _SPREAD
        keys = (keys ^ (keys >> 31)) * _MIX
        self._keys = (keys ^ (keys >> 29)) | 1

    def scan(self, address: int, before: Optional[int], numbers: int, layout: Layout) -> Scan:
        """Look at `numbers` numbers at an address; `before` is where their earlier bits are."""
        count = numbers * layout.per_number
        words = _words(address, count, layout.bits)
        earlier = None if before is None else _words(before, count, layout.bits)
        found = Scan()
        found.count = count
        first = words[0]
        digest = count * 0xFF51AFD7ED558CCD & _MASK
        zeros = like = same = any_bits = 0
        for start in range(0, count, _CHUNK):
            part = words[start : start + _CHUNK]
            keys = self._keys[: part.numel()]
            digest = (digest ^ int(torch.sum(part * keys)) & _MASK) * 0x9DDFEA08EB382D69 & _MASK
            digest ^= digest >> 29
            zeros += part.numel() - int(torch.count_nonzero(part))
            like += int(torch.count_nonzero(part == first))
            any_bits |= _any_bits(part)
            if earlier is not None:
                same += int(torch.count_nonzero(part == earlier[start : start + _CHUNK]))
        mask = (1 << layout.bits) - 1
        found.hash, found.zeros, found.like_first, found.unchanged = digest, zeros, like, same
        found.first_bits, found.any_bits = int(first) & mask, any_bits & mask
        return found

    def number_range(self, address: int, numbers: int, layout: Layout) -> Tuple[float, float]:
        """The least and the greatest number; NaN counts as beyond infinity."""
        words = _words(address, numbers * layout.per_number, layout.bits)
        if not layout.is_float:
            signed = words.view(torch.int8) if layout.bits == 8 and layout.mantissa == 0 else words
            return int(signed.min()), int(signed.max())
        most = (1 << (layout.bits - 1)) - 1
        low, high = most, -most - 1
        for start in range(0, words.numel(), _CHUNK):
            part = words[start : start + _CHUNK]
            ordered = torch.where(part < 0, part ^ most, part)
            low, high = min(low, int(ordered.min())), max(high, int(ordered.max()))
        return ordered_to_number(low, layout), ordered_to_number(high, layout)

    def whole_numbers(self, address: int, numbers: int, layout: Layout) -> bool:
        """Whether no float among them has a fraction."""
        if not layout.is_float:
            return False
        words = _words(address, numbers * layout.per_number, layout.bits)
        floats = words.view(_FLOATS[layout.bits, layout.mantissa])
        step = 64
        start = 0
        while start < words.numel():  # most floats have one, so look at a few first
            part = floats[start : start + step]
            if not bool((torch.isfinite(part) & (part == part.trunc())).all()):
                return False
            start += step
            step = _CHUNK
        return True

    def repeats(self, address: int, size_bytes: int, period_bytes: int) -> bool:
        """Whether the memory is one period again and again."""
        if not period_bytes or size_bytes <= period_bytes or size_bytes % period_bytes:
            return False
        return _same(address, address + period_bytes, size_bytes - period_bytes)

    def constant_runs(self, address: int, count: int, width: int, run: int) -> bool:
        """Whether each run of elements has one value."""
        if run < 2 or not width or count % run:
            return False
        if not _same(address, address + width, (run - 1) * width):
            return False
        rows = _words(address, count * width, 8).view(count // run, run, width)
        return bool((rows == rows[:, :1]).all())


_FLOATS: Dict[Tuple[int, int], torch.dtype] = {
    (64, 52): torch.float64,
    (32, 23): torch.float32,
    (16, 10): torch.float16,
    (16, 7): torch.bfloat16,
}


def _same(one: int, other: int, size_bytes: int) -> bool:
    return torch.equal(_words(one, size_bytes, 8), _words(other, size_bytes, 8))


def _any_bits(words: torch.Tensor) -> int:
    """Bits that any of them has: halves are joined until one is left."""
    while words.numel() > 1:
        half = words.numel() // 2
        joined = words[:half] | words[half : 2 * half]
        words = joined if words.numel() % 2 == 0 else torch.cat((joined, words[-1:]))
    return int(words[0])
