"""Single zero and single value: everything that an operator computed is one and the same number.

A fill is meant to write one value, so fills are no finding here; what a fill costs is the business
of redundant writes and dead initialisations.
"""

from torchyard.worker.values.layouts import bits_to_number
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.patterns import Pattern


class SingleValue(Pattern):
    """One value everywhere in what was computed."""

    name = "single value"

    def observe(self, seen: Observation) -> None:
        """Count a computed tensor that is constant."""
        if not seen.single or seen.operator.fills or seen.scan.count < 2:
            return
        if seen.single_zero:
            self.findings.add("single zero", seen, seen.size_bytes, detail="every bit is zero")
            return
        number = bits_to_number(seen.scan.first_bits, seen.layout)
        self.findings.add(self.name, seen, seen.size_bytes, detail=f"every element is {number:g}")
