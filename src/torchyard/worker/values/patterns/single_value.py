"""Single zero and single value: everything that an operator computed is one and the same number.

A fill is meant to write one value, so fills are no finding here; what a fill costs is the business
of redundant writes and dead initialisations. Nor is what was computed from single numbers, such as
the gradient of a mean; nor a mask that happens to be all true; nor what only follows from a tensor
that is a finding already.
"""

import torch

from torchyard.worker.values.evidence import evidence_of
from torchyard.worker.values.findings import Findings
from torchyard.worker.values.layouts import bits_to_number
from torchyard.worker.values.marks import Marks
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.options import Options
from torchyard.worker.values.patterns import Pattern
from torchyard.worker.values.scanners import Scanners


def only_zeros(seen: Observation) -> bool:
    """Whether all elements are zero; floats have two, and `x * 0` has the sign of x."""
    layout = seen.layout
    sign = 1 << (layout.bits - 1) if layout.is_float else 0
    return bool(seen.scan.any_bits & ~sign == 0)


class SingleValue(Pattern):
    """One value everywhere in what was computed."""

    name = "single value"

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        super().__init__(findings, options, scanner)
        self._found = Marks()

    def observe(self, seen: Observation) -> None:
        """Count a computed tensor that is constant."""
        scan, kind = seen.scan, seen.operator
        zero = only_zeros(seen)
        if (scan.like_first != scan.count and not zero) or scan.count < 2:
            return
        if seen.path or not seen.inputs or seen.dtype is torch.bool:
            return
        if kind.fills or kind.random or kind.many or kind.copies:
            return
        # An accumulator that was only just filled, or a write that changed nothing.
        if not seen.fresh and (seen.was_fill is not None or scan.unchanged == scan.count):
            return
        one_number = seen.layout.bits // 8
        follows = self._found.any_of(seen) is not None or all(
            state.size_bytes <= one_number for _, state in seen.inputs
        )
        self._found.put(seen.state)
        if follows:
            return
        if zero:
            name, detail = "single zero", "every element is zero"
            if scan.any_bits:
                detail += ", of either sign" if scan.zeros else ", of negative sign"
        else:
            number = bits_to_number(scan.first_bits, seen.layout)
            name, detail = self.name, "every element is %g" % number
        self.findings.add(
            name,
            seen,
            seen.size_bytes,
            detail=detail,
            evidence=lambda: evidence_of(seen),
            every_time=True,
        )
