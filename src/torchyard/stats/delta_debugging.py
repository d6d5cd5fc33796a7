"""Delta debugging (ddmin, Zeller and Hildebrandt 2002) with tests that share an error budget. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def share_of_alpha(alpha: float, number: int) -> float:
    """Return the error probability of a test; those of tests 1, 2, 3, ... sum to alpha."""
    return alpha / (number * (number + 1))


def minimize(
    items: Sequence[T],
    keeps: Callable[[tuple[T, ...]], bool],
    on_smaller: Callable[[tuple[T, ...]], None] = lambda _: None,
) -> tuple[T, ...]:
    """Return a subset that keeps a property and none of whose items can be left out.

    `keeps` tests a subset; the property of all items is assumed. `on_smaller` gets every subset that
    keeps it.
    """
    current = tuple(items)
    granularity = 2
    while len(current) > 1:
        chunks = _split(current, granularity)
        subset = next((one for one in chunks if keeps(one)), None)
        complement = None
        if subset is None and granularity > 2:  # noqa: PLR2004 - halves are each other's complements
            others = [tuple(one for one in current if one not in chunk) for chunk in chunks]
            complement = next((one for one in others if keeps(one)), None)
        if subset is not None:
            current, granularity = subset, 2
        elif complement is not None:
            current, granularity = complement, max(2, granularity - 1)
        elif granularity >= len(current):
            break
        else:
            granularity = min(len(current), 2 * granularity)
            continue
        on_smaller(current)
    return current


def _split(items: Sequence[T], parts: int) -> list[tuple[T, ...]]:
    """Split into parts of almost equal size."""
    ends = [len(items) * number // parts for number in range(parts + 1)]
    return [tuple(items[low:high]) for low, high in pairwise(ends)]
