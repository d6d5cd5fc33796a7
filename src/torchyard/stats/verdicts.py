"""From an interval to a word: faster, slower, same or undecided.

Works on the log speedup, where faster and slower are mirror images. Knows nothing of how the
interval came about.
"""

from __future__ import annotations

import math

from torchyard.core.comparison import Verdict

__all__ = ["verdict_of"]


def verdict_of(low: float, high: float, margin: float) -> Verdict:
    """What an interval of the log speedup says, with `margin` as the size that does not matter."""
    limit = math.log1p(margin)
    if -limit <= low and high <= limit:
        return Verdict.SAME
    if low > 0.0:
        return Verdict.FASTER
    if high < 0.0:
        return Verdict.SLOWER
    return Verdict.UNDECIDED
