"""How the numbers of a dtype lie in memory: width, and mantissa and bias of floats."""

import ctypes
from typing import Dict, NamedTuple, Optional

import torch


class Layout(NamedTuple):
    """Of one element; a complex number is two elements."""

    bits: int
    mantissa: int = 0
    """Stored bits of the mantissa; 0 for signed integers, -1 for unsigned ones."""
    bias: int = 0
    per_number: int = 1
    """Elements that make one number."""

    @property
    def is_float(self) -> bool:
        """Whether bits are exponent and mantissa."""
        return self.mantissa > 0


LAYOUTS: Dict[torch.dtype, Layout] = {
    torch.float64: Layout(64, 52, 1023),
    torch.float32: Layout(32, 23, 127),
    torch.bfloat16: Layout(16, 7, 127),
    torch.float16: Layout(16, 10, 15),
    torch.int64: Layout(64),
    torch.int32: Layout(32),
    torch.int16: Layout(16),
    torch.int8: Layout(8),
    torch.uint8: Layout(8, -1),
    torch.bool: Layout(8, -1),
    torch.complex64: Layout(32, 23, 127, 2),
    torch.complex128: Layout(64, 52, 1023, 2),
}
"""Other dtypes (quantised, float8) are not looked into."""


def layout_of(dtype: torch.dtype) -> Optional[Layout]:
    """None for dtypes that are not looked into."""
    return LAYOUTS.get(dtype)


def ordered_to_number(ordered: int, layout: Layout) -> float:
    """The number behind an ordered integer of a scan: floats of negative sign lie backwards."""
    bits, mask = layout.bits, (1 << layout.bits) - 1
    if layout.mantissa < 0:
        return (ordered & mask) ^ 1 << bits - 1
    if layout.mantissa == 0:
        return ordered
    raw = ordered & mask
    if ordered < 0:
        raw ^= mask >> 1
    return bits_to_number(raw, layout)


def bits_to_number(raw: int, layout: Layout) -> float:
    """The number that these bits are."""
    if not layout.is_float:
        top = 1 << (layout.bits - 1)
        return raw - 2 * top if layout.mantissa == 0 and raw & top else raw
    if layout.bits == 64:
        return float(ctypes.c_double.from_buffer(ctypes.c_uint64(raw)).value)
    if layout.bits == 16 and layout.mantissa == 10:
        return _half(raw)
    raw32 = raw << 16 if layout.bits == 16 else raw
    return float(ctypes.c_float.from_buffer(ctypes.c_uint32(raw32)).value)


def _half(raw: int) -> float:
    sign = -1.0 if raw & 0x8000 else 1.0
    exponent, mantissa = raw >> 10 & 31, raw & 1023
    if exponent == 31:
        return float("nan") if mantissa else sign * float("inf")
    if exponent == 0:
        return sign * mantissa * 2.0**-24
    return sign * (1.0 + mantissa / 1024.0) * 2.0 ** (exponent - 15)
