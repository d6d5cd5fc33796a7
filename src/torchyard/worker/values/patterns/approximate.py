"""Approximate: what would be a pattern if numbers were read with the precision of bfloat16.

An opinion, asked for by option and never proven: whether such a difference matters is for the user
to say. A computed tensor that is nearly one value, or whose rows are nearly alike.
"""

import math

import torch

from torchyard.worker.values.evidence import evidence_of
from torchyard.worker.values.findings import Findings
from torchyard.worker.values.marks import Marks
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.options import Options
from torchyard.worker.values.patterns import WORTH_A_LOOK_BYTES, Pattern
from torchyard.worker.values.scanners import Scanners

PRECISION = 2.0**-8
"""Relative; bfloat16 has eight bits of precision."""
_COLUMNS = 4096
_LEAST_DEVIATION = 1e-30


class Approximate(Pattern):
    """Nearly one value, or nearly alike rows."""

    name = "approximate"

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        super().__init__(findings, options, scanner)
        self._found = Marks()

    def observe(self, seen: Observation) -> None:
        """Look at the range, then at the rows."""
        if not self.options.approximate or seen.size_bytes < WORTH_A_LOOK_BYTES:
            return
        if not seen.computed or seen.in_backward or not seen.layout.is_float or seen.single:
            return
        if seen.layout.per_number != 1:
            return
        if self._found.any_of(seen):
            self._found.put(seen.state)
            return
        tensor = seen.tensor
        low, high = self.scanner.number_range(tensor, seen.layout)
        if not (math.isfinite(low) and math.isfinite(high)):
            return
        size = max(abs(low), abs(high))
        if high - low <= size * PRECISION:
            self._report(seen, 1.0, "every element is %.3g to within 1/256" % high)
        elif tensor.dim() > 1 and tensor.shape[0] > 1 and _alike_rows(tensor):
            share = 1 - 1 / tensor.shape[0]
            self._report(seen, share, "all rows are alike to within 1/256")

    def _report(self, seen: Observation, share: float, detail: str) -> None:
        self._found.put(seen.state)
        self.findings.add(
            self.name,
            seen,
            int(seen.size_bytes * share),
            detail=detail,
            evidence=lambda: evidence_of(seen),
            every_time=True,
        )


def _alike_rows(tensor: torch.Tensor) -> bool:
    """Compared with the first row, on columns spread over it; equal bits are `structured`'s."""
    rows = tensor.detach().reshape(tensor.shape[0], -1)
    rows = rows[:, :: max(1, rows.shape[1] // _COLUMNS)].double()
    apart = float((rows - rows[:1]).abs().max())
    return _LEAST_DEVIATION < apart <= float(rows.abs().max()) * PRECISION
