"""What a tensor was before an operator wrote it. Knows memory, not operators."""

from typing import Optional

import torch

from torchyard.worker.values.storages import StorageState, covers


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
