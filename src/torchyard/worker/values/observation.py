"""One look at what one operator wrote: the common currency of all patterns."""

from typing import Any, List, Optional, Sequence, Tuple

import torch

from torchyard.worker.values.layouts import Layout
from torchyard.worker.values.operators import Operator
from torchyard.worker.values.places import Place
from torchyard.worker.values.scan import Scan
from torchyard.worker.values.source_tree import Site
from torchyard.worker.values.storages import StorageState

Inputs = Sequence[Tuple[torch.Tensor, StorageState]]


class Observation:
    """A tensor that an operator made or wrote. `tensor` is valid only while patterns look."""

    __slots__ = (
        "_device",
        "_dtype",
        "_shape",
        "arguments",
        "compared",
        "fresh",
        "func",
        "given",
        "in_backward",
        "inputs",
        "keywords",
        "layout",
        "node",
        "number",
        "operator",
        "path",
        "place",
        "position",
        "scan",
        "site",
        "size_bytes",
        "state",
        "step",
        "tensor",
        "was_defined",
        "was_fill",
        "was_reads",
        "whole",
        "written_inside",
    )

    def __init__(self) -> None:
        self.operator: Operator
        self.func: Any
        self.arguments: Any
        self.keywords: Any
        self.place: Place
        self.path: Tuple[str, ...] = ()
        """Operators that this one runs inside of, outermost first (deep only)."""
        self.in_backward = False
        """Called by a backward pass, wherever the place is."""
        self.step = 0
        self.position = 0
        """Which of the operator's written tensors, counted from 0."""
        self.tensor: torch.Tensor
        self.layout: Layout
        self.scan: Scan
        self.size_bytes = 0
        self.fresh = True
        """New memory, or a write over what was there."""
        self.given = False
        """Whether the program gave this memory to the outermost operator to write: then a write of an
        operator inside is that operator's own."""
        self.compared = False
        """Whether `scan.unchanged` counts: there was a copy of what was there before."""
        self.whole = True
        """Whether it is all of its storage."""
        self.state: StorageState
        self.was_defined = False
        """Whether the memory held values before this write."""
        self.was_fill: Optional["Observation"] = None
        """The fill that this write overwrote, if nothing else was written in between."""
        self.was_reads = 0
        """Reads between the write before and this one."""
        self.site: Optional[Site] = None
        """Of a fill: the call in the source of the program."""
        self.node = -1
        self.number = 0
        """Which of the operators inside the outermost one, in the order they began: a replay finds it
        again by this."""
        self.inputs: Inputs = ()
        """What the operator read, without what it only overwrote."""
        self.written_inside = False
        """Deep only: an operator inside wrote all of it, which was observed on its own. The values
        are worth a look, the write itself was judged."""

    def release(self) -> None:
        """Let go of tensors, which would keep their memory; the rest may be kept."""
        self._shape, self._dtype, self._device = self.shape, self.dtype, self.device
        self.tensor = self.arguments = self.keywords = None
        self.inputs = ()

    @property
    def shape(self) -> Tuple[int, ...]:
        """Of the tensor, also when it is gone."""
        return self._shape if self.tensor is None else tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor, also when it is gone."""
        return self._dtype if self.tensor is None else self.tensor.dtype

    @property
    def device(self) -> str:
        """Of the tensor, also when it is gone."""
        return self._device if self.tensor is None else str(self.tensor.device)

    @property
    def computed(self) -> bool:
        """Whether it is a new result of an operator of the program, worked out from other values.

        What is filled or drawn at random was asked for; what an operator makes inside of itself is
        not the program's; and lists of tensors are the business of optimisers.
        """
        kind = self.operator
        return bool(
            self.fresh
            and self.inputs
            and not self.path
            and not (kind.fills or kind.random or kind.many)
        )

    @property
    def converted(self) -> bool:
        """Whether a copy made another dtype of it."""
        source = self.inputs[0][0] if self.inputs else None
        return bool(self.operator.copies and source is not None and source.dtype != self.dtype)

    @property
    def single(self) -> bool:
        """Whether all elements have the same bits."""
        return bool(self.scan.like_first == self.scan.count)

    @property
    def single_zero(self) -> bool:
        """Whether all bits are zero."""
        return bool(self.scan.zeros == self.scan.count)

    @property
    def unchanged_share(self) -> float:
        """Share of the elements that had these bits before; 0 for new memory."""
        return float(self.scan.unchanged) / self.scan.count if not self.fresh else 0.0

    def values(self, most: int = 4096) -> torch.Tensor:
        """Elements spread evenly over the tensor, as a flat copy."""
        flat = self.tensor.detach().reshape(-1)
        step = max(1, flat.numel() // most)
        return flat[::step][:most].clone().cpu()


Observations = List[Observation]
