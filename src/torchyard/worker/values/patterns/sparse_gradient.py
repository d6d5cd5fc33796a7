"""Sparse gradient: a dense gradient that is nearly all zero rows.

Of a table that was looked up by index, or one gradient of full size for each `select` or slice of a tensor, where
`unbind` or `split` would assemble the parts.
"""

from typing import Any, Dict, List, Optional, Tuple

from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import aten
from torchyard.worker.values.patterns import LEAST_FINDING_BYTES, Pattern, evidence_of

SHARE = 0.9
"""Minimum share of zero rows: sparse updates cost more per row than dense ones."""
LOOKUPS = aten("embedding_dense_backward _embedding_bag_backward")
INDEXED = aten("index_put index_put_ _index_put_impl_ index_add index_add_ _unsafe_index_put")
"""Operators that compute the gradient of indexing; a finding only for a parameter."""
PARTS = aten("select_backward slice_backward")
_MOST_BASES = 512


class _Base:
    """A tensor that was split, and the parts that received a gradient."""

    __slots__ = ("first", "parts")

    def __init__(self) -> None:
        self.parts: Dict[Tuple[int, int], int] = {}
        """(start, end) along the dimension -> bytes of the gradient."""
        self.first: Optional[Observation] = None


class SparseGradient(Pattern):
    """Gradients that are almost entirely zero."""

    name = "sparse gradient"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._bases: Dict[Any, _Base] = {}

    def observe(self, observation: Observation) -> None:
        """Examine gradients of operators that select rows or parts."""
        name = observation.operator.name
        if observation.size_bytes < LEAST_FINDING_BYTES or observation.path:
            return
        if name in PARTS:
            if not observation.view_of_torch:
                self._part(observation)
        elif name in LOOKUPS or (name in INDEXED and self._for_parameter()):
            self._rows(observation)

    def end_step(self) -> None:
        """Reset the parts, which belong to one backward pass."""
        self._bases.clear()

    def _for_parameter(self) -> bool:
        node = self.autograd_node()
        if node is None:
            return False
        return any(
            type(after).__name__ == "AccumulateGrad" for after, _ in node.next_functions if after
        )

    def _rows(self, observation: Observation) -> None:
        if (
            observation.scan.zeros < observation.scan.count * SHARE
            or observation.single
            or observation.tensor.dim() < 2
        ):
            return
        rows = observation.tensor.detach().reshape(observation.tensor.shape[0], -1)
        used = int((rows != 0).any(dim=1).sum())
        share = 1 - used / rows.shape[0]
        if share < SHARE:
            return
        detail = "%d of %d rows have a gradient" % (used, rows.shape[0])
        self.report(observation, detail, share, lambda: evidence_of(observation, zero_rows=share))

    def _part(self, observation: Observation) -> None:
        base_of = _base_of(self.autograd_node())
        part = _extent(observation)
        if base_of is None or part is None:
            return
        dim, size, start, end = part
        key = (base_of, dim)
        base = self._bases.get(key)
        if base is None:
            if len(self._bases) >= _MOST_BASES:
                self._bases.clear()
            base = self._bases[key] = _Base()
        base.parts[start, end] = observation.size_bytes
        if base.first is None or observation.place.line < base.first.place.line:
            base.first = observation
        if len(base.parts) > 1 and _disjoint_cover(base.parts, size):
            del self._bases[key]
            first = base.first
            parts = len(base.parts)
            self.findings.add(
                self.name,
                first,
                sum(base.parts.values()) - observation.size_bytes,
                detail="%d parts, each with a gradient of the full size" % parts,
                evidence=lambda: evidence_of(first, parts=parts),
            )


def _base_of(node: Any) -> Optional[Any]:
    """Return the identity of the tensor whose gradient an autograd node computes."""
    if node is None or not node.next_functions or node.next_functions[0][0] is None:
        return None
    after, position = node.next_functions[0]
    variable = getattr(after, "variable", None)
    return (id(variable), position) if variable is not None else (after._sequence_nr(), position)


def _extent(observation: Observation) -> Optional[Tuple[int, int, int, int]]:
    """Return the dimension, its size, and start and end of the part."""
    arguments = list(observation.arguments)
    sizes, dim = arguments[1], arguments[2]
    size = sizes[dim]
    if observation.operator.name == "aten::select_backward":
        start = arguments[3] % size
        return dim % len(sizes), size, start, start + 1
    start, end, step = arguments[3], arguments[4], arguments[5]
    if step != 1:
        return None
    start = max(0, start + size if start < 0 else start)
    end = min(size, end + size if end < 0 else end)
    return dim % len(sizes), size, start, end


def _disjoint_cover(parts: Dict[Tuple[int, int], int], size: int) -> bool:
    ordered: List[Tuple[int, int]] = sorted(parts)
    at = 0
    for start, end in ordered:
        if start != at:
            return False
        at = end
    return at == size
