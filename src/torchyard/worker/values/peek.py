"""A few elements of memory, read directly: for patterns that mostly want to say no.

Reading one element takes well under a microsecond, where an operator of torch takes tens.
"""

import ctypes
from typing import Any, Dict, Optional, Tuple

import torch

_BITS: Dict[int, Any] = {
    8: ctypes.c_uint8,
    16: ctypes.c_uint16,
    32: ctypes.c_uint32,
    64: ctypes.c_uint64,
}
_NUMBERS: Dict[torch.dtype, Any] = {
    torch.float64: ctypes.c_double,
    torch.float32: ctypes.c_float,
    torch.int64: ctypes.c_int64,
    torch.int32: ctypes.c_int32,
    torch.int16: ctypes.c_int16,
    torch.int8: ctypes.c_int8,
    torch.uint8: ctypes.c_uint8,
}


def bits_at(address: int, place: int, bits: int) -> int:
    """The bits of one element."""
    return int(_BITS[bits].from_address(address + place * (bits // 8)).value)


def first_three(tensor: torch.Tensor) -> Optional[Tuple[Any, Any, Any]]:
    """The first numbers in memory of the CPU; None for dtypes that C has no name for."""
    kind = _NUMBERS.get(tensor.dtype)
    if kind is None or tensor.numel() < 3:
        return None
    found = (kind * 3).from_address(tensor.data_ptr())
    return found[0], found[1], found[2]
