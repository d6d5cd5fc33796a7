"""Where this process puts its memory: a start position drawn by the yard.

Runs before torch is imported. With address randomisation off, the two sides of a launch would sit
at one frozen layout for ever; the yard therefore draws an offset for each launch and gives the same
one to both sides. Layout effects that both sides share then cancel in the pair, and many launches
still average over many layouts.
"""

import ctypes
import mmap
from typing import Any, List, Optional

PAGE_BYTES = mmap.PAGESIZE

_held: List[Any] = []


def shift(pages: int, heap_bytes: int) -> None:
    """Keep an untouched mapping and a heap block for the life of the process."""
    if pages > 0:
        _held.append(mmap.mmap(-1, pages * PAGE_BYTES))
    if heap_bytes > 0:
        _held.append(bytearray(heap_bytes))


def randomisation_is_off() -> Optional[bool]:
    """Whether the kernel placed this process without address randomisation; None: unknown."""
    try:
        with open("/proc/self/personality", encoding="ascii") as file:
            return bool(int(file.read(), 16) & 0x0040000)
    except (OSError, ValueError):
        return None


def give_back_free_heap() -> bool:
    """Return free heap pages to the kernel, so that the next use draws other physical pages."""
    try:
        libc = ctypes.CDLL(None)
        libc.malloc_trim(ctypes.c_size_t(0))
    except (OSError, AttributeError):
        return False
    return True
