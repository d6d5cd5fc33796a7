"""How many of a comparison's blocks were disturbed, and by what. A function over recorded blocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from torchyard.core.block import Block
from torchyard.core.comparison import GuardSummary

__all__ = ["summarize_guards"]


def summarize_guards(blocks: Iterable[Block], baseline: str, candidate: str) -> GuardSummary:
    """Of the rounds in which both variants have a block: the comparison is made of these."""
    rounds: dict[tuple[int, int], dict[str, Block]] = defaultdict(dict)
    for block in blocks:
        if block.variant in {baseline, candidate}:
            rounds[block.launch, block.round][block.variant] = block
    paired = [block for sides in rounds.values() if len(sides) > 1 for block in sides.values()]
    reasons = Counter(reason for block in paired for reason in block.dirty)
    degrees = [
        block.guard.cpu_temperature_c
        for block in paired
        if block.guard.cpu_temperature_c is not None
    ]
    return GuardSummary(
        blocks=len(paired),
        dirty=sum(1 for block in paired if block.dirty),
        reasons=tuple(reasons.most_common()),
        temperature_c=(min(degrees), max(degrees)) if degrees else None,
    )
