"""Redundant write: an operator wrote over memory and left (nearly) every bit as it was.

Only over memory that held values: fresh memory often happens to be zero, and is not a value. A
guard that changed nothing is the business of `guard`.
"""

from torchyard.worker.values.evidence import evidence_of
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.patterns import Pattern
from torchyard.worker.values.patterns.guard import GUARDS, chose_elements

SHARE = 0.99
"""Of the elements must be unchanged. The rest is what a real update of a few elements leaves."""

CHOOSES = (
    "aten::index_",
    "aten::_index_put",
    "aten::scatter",
    "aten::masked_",
    "aten::put_",
)
"""Operators that write chosen elements: that the others stay is no waste, so all must stay."""

MAY_WRITE = ("aten::_fused_", "aten::_native_batch_norm", "aten::_batch_norm_with_update")
"""Operators whose schema names more than they always write: gradients of fused optimisers are written
only when they are scaled."""


class RedundantWrite(Pattern):
    """Unchanged elements of writes over defined memory."""

    name = "redundant write"

    def observe(self, seen: Observation) -> None:
        """Count a write that changed nearly nothing."""
        if seen.fresh or not seen.compared or seen.scan.unchanged < seen.scan.count * SHARE:
            return
        if not seen.was_defined or seen.written_inside or (seen.path and seen.given):
            return
        name, share = seen.operator.name, seen.unchanged_share
        if name.startswith(MAY_WRITE) or (share < 1.0 and name.startswith(CHOOSES)):
            return
        if name in GUARDS and (seen.path or not chose_elements(seen)):
            return
        if name == "aten::copy_" and seen.arguments[0] is seen.arguments[1]:
            return  # torch returns at once from a copy of a tensor to itself
        if name == "aten::pow_" and seen.arguments[1] == 1:
            return  # that is such a copy
        # What was only just filled is an accumulator, and zero times anything stays zero.
        if seen.was_fill is not None and not seen.operator.overwrites:
            return
        self.findings.add(
            self.name,
            seen,
            int(seen.size_bytes * share),
            detail="%.3g %% of the elements had these bits before" % (100 * share),
            evidence=lambda: evidence_of(seen, unchanged_share=share),
            every_time=True,
        )
