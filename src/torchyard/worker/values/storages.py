"""Memory of tensors by identity: who wrote it last, whether it is defined, what it held.

Allocators give the same address to one tensor after another, so addresses identify nothing. A
storage is identified by its own object; a weak reference keeps that object (not its memory) from
being reused while it is tracked.
"""

from typing import Any, Dict, List, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_PURGE_EVERY = 4096

untyped_storage = torch._C.TensorBase.untyped_storage
"""The method as torch has it: `outside` replaces the one that programs call."""


def storage_key(tensor: torch.Tensor) -> int:
    """What identifies the memory of a tensor as long as the memory is there."""
    key: int = untyped_storage(tensor)._cdata
    return key


class StorageState:
    """What is known of one piece of memory."""

    __slots__ = (
        "born",
        "defined",
        "epoch",
        "fill",
        "hash",
        "key",
        "node",
        "outside",
        "pieces",
        "reads",
        "ref",
        "size_bytes",
        "uses",
        "version",
    )

    def __init__(self, key: int, ref: Any, size_bytes: int, defined: bool) -> None:
        self.key = key
        self.ref = ref
        self.size_bytes = size_bytes
        self.defined = defined
        """False for memory that nothing was written to: what is in there is not a value."""
        self.born = 0
        """Number of the operator during which it was first seen."""
        self.node = -1
        """Of the flow graph: the last writer; -1 for memory that was there before."""
        self.outside = False
        """Whether the program can reach it past the dispatcher: then nothing below can be trusted."""
        self.epoch = 0
        """Of `Storages`, when the content was last known."""
        self.version = 0
        """Counts writes."""
        self.reads = 0
        """Since the last write, by operators and by those inside them."""
        self.uses = 0
        """The same by operators of the program alone."""
        self.pieces: Optional[Any] = None
        """A `FillPieces`, while a fill is being overwritten piece by piece and was not read."""
        self.fill: Optional[Any] = None
        """The observation of the fill that wrote all of it, until something else writes."""
        self.hash: Optional[int] = None
        """Of the bits after the last write, when all of it was seen."""

    def forget(self) -> None:
        """Trust nothing that was known of its content: it may have been read and written."""
        self.hash = self.fill = self.pieces = None
        self.reads += 1

    def escape(self) -> None:
        """From now on it may be read and written unseen."""
        self.outside = True
        self.forget()

    @property
    def alive(self) -> bool:
        """Whether its memory is still there."""
        return not self.ref.expired()


class Storages:
    """All memory that operators touched."""

    def __init__(self) -> None:
        self._states: Dict[int, StorageState] = {}
        self._since_purge = 0
        self.epoch = 0
        """Counts calls of code that may reach any memory: nothing known before holds after one."""

    def of(self, tensor: torch.Tensor, born: int, defined: bool = True) -> StorageState:
        """The state of a tensor's memory; `born` and `defined` are for memory not seen before."""
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
            # Kernels that are given an empty tensor for their result resize it.
            state.size_bytes = storage.nbytes()
            if state.epoch != self.epoch:
                state.epoch = self.epoch
                state.forget()
        return state

    def purge(self) -> None:
        """Forget memory that is gone."""
        self._since_purge = 0
        gone: List[int] = [key for key, state in self._states.items() if not state.alive]
        for key in gone:
            del self._states[key]

    def clear(self) -> None:
        """Forget everything: memory was not kept track of, and is met anew."""
        self._states.clear()
        self._since_purge = 0

    def __len__(self) -> int:
        return len(self._states)


def covers(tensor: torch.Tensor, state: StorageState) -> bool:
    """Whether the tensor is all of its memory, so that writing it writes everything."""
    return tensor.numel() * tensor.element_size() == state.size_bytes


class Before:
    """What a tensor was before an operator wrote it."""

    __slots__ = (
        "copy",
        "defined",
        "earlier",
        "fill",
        "hash",
        "reads",
        "size_bytes",
        "state",
        "tensor",
        "version",
        "whole",
    )

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
        """Address of a copy of its bits, for memory of the CPU."""
        self.earlier: Optional[torch.Tensor] = None
        """A copy of its bits, for memory of a GPU."""
