"""Test whether deviations are symmetric around 0. Knows nothing of pairs, launches or verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

__all__ = ["sign_flip_p"]

_FLIPS: Final = 4096
_MOST_FLIPPED: Final = 400
"""With more values than this the normal approximation replaces random flips."""
_SEED: Final = 7_919


def sign_flip_p(values: Sequence[float]) -> float:
    """Two-sided p-value of "the values are symmetric around 0", from their sum (Fisher 1935).

    Flips the signs of all values at random, always with the same random numbers.
    """
    found = np.asarray(values, dtype=np.float64)
    total = abs(float(found.sum()))
    size = math.sqrt(float(found @ found))
    # Below one part in a billion the values are rounding.
    if found.size == 0 or total <= 1e-9 * found.size or size == 0.0:
        return 1.0
    if found.size > _MOST_FLIPPED:
        return math.erfc(total / size / math.sqrt(2.0))
    rng = np.random.default_rng((_SEED, found.size))
    signs = rng.integers(0, 2, (_FLIPS, found.size), dtype=np.int8) * 2.0 - 1.0
    as_large = int(np.count_nonzero(np.abs(signs @ found) >= total * (1.0 - 1e-12)))
    return (1.0 + as_large) / (1.0 + _FLIPS)
