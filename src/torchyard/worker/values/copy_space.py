"""Memory for copies of what is about to be overwritten: one block, used as a stack, of bounded size.

Operators nest in deep profiles, and so do their copies. The block is asked for once; the operating
system gives pages only as they are used.
"""

import ctypes
from typing import Optional

import torch

_ALIGN = 64


class CopySpace:
    """Copies that live until the operator that needs them is done."""

    def __init__(self, size_bytes: int) -> None:
        self._block = torch.empty(max(0, size_bytes), dtype=torch.uint8, device="cpu")
        self._base = self._block.data_ptr()
        self._size = size_bytes
        self._top = 0
        self.peak_bytes = 0

    def close(self) -> None:
        """Give the memory back; nothing can be copied any more."""
        self._block = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._size = 0

    def mark(self) -> int:
        """The present height, for `release`."""
        return self._top

    def release(self, mark: int) -> None:
        """Give back everything that was copied since the mark."""
        self._top = mark

    def copy(self, address: int, size_bytes: int) -> Optional[int]:
        """Copy memory; the copy's address, or None when there is no room left."""
        end = self._top + -(-size_bytes // _ALIGN) * _ALIGN
        if end > self._size:
            return None
        place = self._base + self._top
        ctypes.memmove(place, address, size_bytes)
        self._top = end
        self.peak_bytes = max(self.peak_bytes, end)
        return place
