"""Frequent values: nearly all of a computed tensor is one number, mostly zero.

Then most of the work on it is work on that number: an index, a gather or a sparse form does less.
Activations that cut off are meant to make zeros, and are mentioned only when next to nothing else
is left. Gradients are sparse by nature and the business of `sparse_gradient`.
"""

import math
from typing import List, Optional, Tuple

import torch

from torchyard.worker.values.evidence import evidence_of
from torchyard.worker.values.findings import Findings
from torchyard.worker.values.layouts import bits_to_number
from torchyard.worker.values.marks import Marks
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.options import Options
from torchyard.worker.values.patterns import Pattern
from torchyard.worker.values.patterns.single_value import only_zeros
from torchyard.worker.values.scanners import Scanners

LEAST_BYTES = 64 << 10
"""A sparse form has costs of its own; below this there is nothing to win."""
SHARE = 0.9
"""Sparse kernels need about this much to win over dense ones, and activations stay below it."""
ORDINARY_SHARE = 0.99
"""For operators whose purpose is to cut off or mask."""
ORDINARY = frozenset(
    "aten::" + name
    for name in (
        "relu",
        "threshold",
        "hardtanh",
        "hardshrink",
        "softshrink",
        "clamp",
        "clamp_min",
        "clamp_max",
        "masked_fill",
        "where",
        "tril",
        "triu",
        "_softmax",
        "_safe_softmax",
        "constant_pad_nd",
    )
)
_PROBES = tuple(place * 0.6180339887498949 % 1 for place in range(1, 9))
"""Where to look first, as shares: multiples of the golden ratio fall in step with no shape."""
_LEAST_ZEROS = 0.2
"""When zeros have both signs, a good part has the positive one."""


class FrequentValues(Pattern):
    """One value nearly everywhere in what was computed."""

    name = "frequent values"

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        super().__init__(findings, options, scanner)
        self._known = Marks()
        """Gradients and findings that are so: what is computed from them follows."""

    def observe(self, seen: Observation) -> None:
        """Count a computed tensor that is nearly constant."""
        scan = seen.scan
        if seen.size_bytes < LEAST_BYTES or scan.like_first == scan.count or seen.path:
            return
        if seen.dtype is torch.bool or seen.layout.per_number != 1 or only_zeros(seen):
            return
        found = _most_frequent(seen, self.scanner)
        if found is None:
            return
        bits, count = found
        share = count / scan.count
        if share < (ORDINARY_SHARE if seen.operator.name in ORDINARY else SHARE):
            return
        if seen.in_backward or self._known.any_of(seen):
            self._known.put(seen.state)
            return
        if not seen.computed or (seen.operator.copies and not seen.converted):
            return
        self._known.put(seen.state)
        number = bits_to_number(bits, seen.layout)
        self.findings.add(
            self.name,
            seen,
            int(seen.size_bytes * share),
            detail="%.3g %% of the elements are %g" % (100 * share, number),
            evidence=lambda: evidence_of(seen, share=share),
            every_time=True,
        )


def _most_frequent(seen: Observation, scanner: Scanners) -> Optional[Tuple[int, int]]:
    """Bits that most elements have, and how many have them; None when no value is frequent."""
    scan, layout = seen.scan, seen.layout
    least = scan.count * SHARE
    if scan.zeros >= least:
        return 0, scan.zeros
    if scan.like_first >= least:
        return scan.first_bits, scan.like_first
    # The first element is a rare one, or zeros have both signs, or no value is frequent: look at
    # a few, which mostly ends it.
    tensor, count, bits = seen.tensor, scan.count, layout.bits
    first = scanner.element(tensor, int(_PROBES[0] * count), bits)
    second = scanner.element(tensor, int(_PROBES[1] * count), bits)
    # Zeros may have both signs: x * 0 has that of x.
    if first != second and scan.zeros < count * _LEAST_ZEROS:
        return None
    negative_zero = 1 << (layout.bits - 1) if layout.is_float else 0
    probes: List[int] = []
    for share in _PROBES:
        probe = scanner.element(tensor, int(share * count), bits)
        probes.append(0 if probe == negative_zero else probe)
    likely = max(set(probes), key=probes.count)
    if probes.count(likely) < len(probes) - 1:
        return None
    count = _count_of(likely, seen)
    return (likely, count) if count >= least else None


def _count_of(bits: int, seen: Observation) -> int:
    number = bits_to_number(bits, seen.layout)
    if math.isnan(number):
        return int(torch.isnan(seen.tensor).sum())
    return int((seen.tensor == number).sum())
