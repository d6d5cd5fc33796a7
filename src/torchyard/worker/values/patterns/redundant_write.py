"""Redundant write: an operator wrote over memory and left (nearly) every bit as it was.

Only over memory that held values: fresh memory often happens to be zero, and is not a value.
"""

from torchyard.worker.values.observation import Observation
from torchyard.worker.values.patterns import Pattern

SHARE = 0.99
"""Of the elements must be unchanged."""


class RedundantWrite(Pattern):
    """Unchanged elements of writes over defined memory."""

    name = "redundant write"

    def observe(self, seen: Observation) -> None:
        """Count a write that changed nearly nothing."""
        if seen.fresh or seen.written_inside or not seen.compared or not seen.was_defined:
            return
        share = seen.unchanged_share
        if share >= SHARE:
            wasted = int(seen.size_bytes * share)
            self.findings.add(
                self.name, seen, wasted, detail=f"{share:.1%} of the bytes were so before"
            )
