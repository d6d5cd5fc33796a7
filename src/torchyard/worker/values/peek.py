"""A few elements of memory, read directly: for patterns that mostly want to say no.

Reading one element takes well under a microsecond, where an operator of torch takes tens.
"""

import ctypes
from typing import Any, Dict, Optional, Tuple

import torch

WORDS: Dict[int, Any] = {
    8: ctypes.c_uint8,
    16: ctypes.c_uint16,
    32: ctypes.c_uint32,
    64: ctypes.c_uint64,
}
"""By width; `WORDS[32].from_address(address).value` are the bits of one element."""
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
    """The first numbers in memory; None for dtypes that C has no name for."""
    three = _THREE.get(tensor.dtype)
    if three is None or tensor.numel() < 3:
        return None
    if not tensor.is_cpu:
        first, second, third = tensor.detach().reshape(-1)[:3].tolist()
        return first, second, third
    found = three.from_address(tensor.data_ptr())
    return found[0], found[1], found[2]
