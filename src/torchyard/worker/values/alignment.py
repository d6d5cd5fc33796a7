"""Which operators of a step are those of an earlier step, when a few came instead of others.

Torch takes another way through some operators while a dispatch mode is in place (`linear` adds its
bias in place without one). So a step that is followed without the mode is not quite the step that was
looked at with it, and its operators get their places from there by what stands around them.
"""

from typing import Any, List, Optional, Sequence

_FAR = 24
"""How far ahead the two are compared after a difference."""
_ALIKE = 3
"""Operators in a row that must be alike before they are taken for the same again."""


def align(now: Sequence[Any], before: Sequence[Any]) -> List[Optional[int]]:
    """For each operator the number of the earlier one; None for those that are new.

    As many new ones as old ones between two stretches that are alike stand for each other.
    """
    found: List[Optional[int]] = []
    here = there = 0
    while here < len(now) and there < len(before):
        if now[here] is before[there]:
            found.append(there)
            here, there = here + 1, there + 1
            continue
        skip = _next_alike(now, before, here, there)
        if skip is None:
            break
        new, old = skip
        found += [there + k if new == old else None for k in range(new)]
        here, there = here + new, there + old
    return found + [None] * (len(now) - len(found))


def _next_alike(now: Sequence[Any], before: Sequence[Any], here: int, there: int) -> Any:
    """How many to leave out here and there until the two are alike again: as few as possible."""
    for total in range(1, 2 * _FAR):
        for new in range(max(0, total - _FAR), min(total, _FAR) + 1):
            old = total - new
            if _alike(now, before, here + new, there + old):
                return new, old
    return None


def _alike(now: Sequence[Any], before: Sequence[Any], here: int, there: int) -> bool:
    if here >= len(now) or there >= len(before):
        return here == len(now) and there == len(before)
    count = min(_ALIKE, len(now) - here, len(before) - there)
    return all(now[here + k] is before[there + k] for k in range(count))
