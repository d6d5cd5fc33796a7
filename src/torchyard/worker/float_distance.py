"""All that is asked of two tensors of floating-point numbers, in one pass over them. Runs inside the target."""

import math
from typing import Any, List

import torch

from torchyard.worker.tensor_distance import pieces


class FloatDistance:
    """How far a candidate's tensor and its peer's are from the reference, and from the baseline's.

    The reference is the float64 one, or the baseline where there is none. Numbers that are not
    finite in the baseline must be the same ones in the candidate, and count no further.
    """

    def __init__(
        self, found: Any, baseline: Any, peer: Any, exact: Any, *, tolerance: float, on: Any
    ) -> None:
        self.mismatch = ""
        """What differs among infinities and NaN; nothing else is known then."""
        self.nan = 0
        self.finite = 0
        self.largest = 0.0
        """The largest difference from the baseline."""
        self.beyond = -math.inf
        """The largest difference from the baseline, less the tolerance for a number of that size."""
        self._sums: List[float] = [0.0] * 6
        reference = baseline if exact is None else exact
        for one, other, like, right in pieces(on, found, baseline, peer, reference):
            self._add(one, other, like, right, tolerance)
            if self.mismatch:
                return

    def _add(self, found: Any, baseline: Any, peer: Any, reference: Any, tolerance: float) -> None:
        finite = torch.isfinite(baseline)
        if not bool(finite.all()) or not bool(torch.isfinite(found).all()):
            if not self._same_unbounded(found, baseline, finite):
                return
            found, baseline, peer, reference = (
                numbers[finite] for numbers in (found, baseline, peer, reference)
            )
        if not found.numel():
            return
        self.finite += int(found.numel())
        gap = (found - baseline).abs()
        # A reference or a peer may be infinite where the others are not; that says nothing of them.
        size, off, peer_off = (
            torch.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0)
            for numbers in (reference, found - reference, peer - reference)
        )
        largest, beyond, *sums = torch.stack(
            [
                gap.max(),
                (gap - tolerance * size.abs()).max(),
                (size * size).sum(),
                (off * off).sum(),
                (peer_off * peer_off).sum(),
                (found * baseline).sum(),
                (found * found).sum(),
                (baseline * baseline).sum(),
            ]
        ).tolist()
        self.largest, self.beyond = max(self.largest, largest), max(self.beyond, beyond)
        self._sums = [total + part for total, part in zip(self._sums, sums)]

    def _same_unbounded(self, found: Any, baseline: Any, finite: Any) -> bool:
        if not torch.equal(torch.isfinite(found), finite):
            self.mismatch = "not finite where the baseline is, or the reverse"
            return False
        nan = torch.isnan(baseline)
        unbounded = ~finite & ~nan
        if not torch.equal(torch.isnan(found), nan) or not torch.equal(
            found[unbounded], baseline[unbounded]
        ):
            self.mismatch = "NaN or infinity where the baseline has another of them"
            return False
        self.nan += int(nan.sum())
        return True

    def _root_mean(self, which: int) -> float:
        return math.sqrt(self._sums[which] / self.finite) if self.finite else 0.0

    @property
    def size(self) -> float:
        """Root mean square of the reference."""
        return self._root_mean(0)

    @property
    def candidate(self) -> float:
        """Root mean square of the candidate's distance from the reference."""
        return self._root_mean(1)

    @property
    def peer(self) -> float:
        """The same of the peer's."""
        return self._root_mean(2)

    @property
    def cosine(self) -> float:
        """Of the angle between candidate and baseline as vectors; of two zeros it is 1, of one 0."""
        product, left, right = self._sums[3:]
        if left == 0 or right == 0:
            return 1.0 if left == right else 0.0
        return product / math.sqrt(left * right)
