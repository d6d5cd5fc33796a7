"""State of tensor memory by identity: last writer, whether it is initialized, contents.

Allocators reuse addresses, so an address does not identify memory. A storage is identified by its
object; a weak reference prevents reuse of that object (not of its memory) while it is tracked.
"""

from typing import Any, Dict, List, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_PURGE_EVERY = 4096

untyped_storage = torch._C.TensorBase.untyped_storage
"""The original method of torch: `unobserved.py` replaces the one that programs call."""


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that identifies the memory of a tensor during its lifetime."""
    key: int = untyped_storage(tensor)._cdata
    return key


class StorageState:
    """Tracked state of one storage."""

    def __init__(self, key: int, ref: Any, size_bytes: int, defined: bool) -> None:
        self.key = key
        self.ref = ref
        self.size_bytes = size_bytes
        self.defined = defined
        """False for uninitialized memory."""
        self.born = 0
        """Number of the operator during which it first appeared."""
        self.node = -1
        """Last writer in the flow graph; -1 for memory that existed before profiling."""
        self.outside = False
        """Whether the program can access it without the dispatcher; then the fields below are unreliable."""
        self.epoch = 0
        """Value of `Storages.epoch` when the contents were last known."""
        self.version = 0
        """Number of writes."""
        self.reads = 0
        """Reads since the last write, including those of inner operators."""
        self.uses = 0
        """Reads since the last write by operators of the program."""
        self.pieces: Optional[Any] = None
        """`FillPieces` of an unread fill that is being overwritten piece by piece."""
        self.fill: Optional[Any] = None
        """Observation of the fill that wrote the whole storage, until the next write."""
        self.hash: Optional[int] = None
        """Hash of the contents after the last write, if it was fully observed."""

    def forget(self) -> None:
        """Discard what is known of the contents: they may have been read and written."""
        self.hash = self.fill = self.pieces = None
        self.reads += 1

    def escape(self) -> None:
        """Mark the memory as accessible without being observed."""
        self.outside = True
        self.forget()

    @property
    def alive(self) -> bool:
        """Whether its memory still exists."""
        return not self.ref.expired()


class Storages:
    """All storages that operators accessed."""

    def __init__(self) -> None:
        self._states: Dict[int, StorageState] = {}
        self._since_purge = 0
        self.epoch = 0
        """Number of calls of code that may access any memory and invalidates all known contents."""

    def of(self, tensor: torch.Tensor, born: int, defined: bool = True) -> StorageState:
        """Return the state of a tensor's memory; `born` and `defined` apply to new storages."""
        storage = untyped_storage(tensor)
        key = storage._cdata
        state = self._states.get(key)
        if state is None:
            self._since_purge += 1
            if self._since_purge >= _PURGE_EVERY:
                self.purge()
            state = StorageState(key, StorageWeakRef(storage), storage.nbytes(), defined)
            state.born, state.epoch = born, self.epoch
            self._states[key] = state
        else:
            # Kernels resize an empty output tensor.
            state.size_bytes = storage.nbytes()
            if state.epoch != self.epoch:
                state.epoch = self.epoch
                state.forget()
        return state

    def purge(self) -> None:
        """Remove storages that were freed."""
        self._since_purge = 0
        gone: List[int] = [key for key, state in self._states.items() if not state.alive]
        for key in gone:
            del self._states[key]

    def clear(self) -> None:
        """Remove all states: memory was not tracked in the meantime."""
        self._states.clear()
        self._since_purge = 0

    def __len__(self) -> int:
        return len(self._states)


def covers(tensor: torch.Tensor, state: StorageState) -> bool:
    """Return whether a tensor covers its whole storage."""
    return tensor.numel() * tensor.element_size() == state.size_bytes


class Before:
    """State of a tensor before an operator wrote it."""

    def __init__(self, tensor: torch.Tensor, state: StorageState) -> None:
        self.tensor = tensor
        self.state = state
        self.defined = state.defined
        self.fill = state.fill
        self.hash = state.hash
        self.reads = state.reads
        self.size_bytes = tensor.numel() * tensor.element_size()
        self.version = state.version
        self.whole = covers(tensor, state)
        self.copy: Optional[int] = None
        """Address of a copy of its contents, for CPU memory."""
        self.earlier: Optional[torch.Tensor] = None
        """Copy of its contents, for GPU memory."""
