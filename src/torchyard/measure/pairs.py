"""From blocks to pairs: the log speedups that the statistics are made of.

A pair is the baseline's block and a candidate's block of one round. Its value is the log of
baseline time over candidate time. Disturbed pairs are left out as long as most pairs are clean. On
a machine that is busy throughout there is nothing to choose from: then all pairs are kept (random
order inside a pair keeps the comparison fair) and the comparison says that it speaks for a busy
machine. Pure functions over recorded blocks, so that an old run can be analysed again.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from torchyard.core.block import Block

__all__ = ["DIRTY_SHARE_LIMIT", "MIN_CLEAN_PAIRS", "PairedLaunches", "pair_blocks"]

MIN_CLEAN_PAIRS: Final = 3
"""A launch with fewer clean pairs has no median worth the name and is left out."""
DIRTY_SHARE_LIMIT: Final = 0.5
"""With more dirty pairs than this the machine counts as busy throughout."""


@dataclass(frozen=True, kw_only=True)
class PairedLaunches:
    """Pairs of every launch, in order; a launch with too few clean ones is there, but empty."""

    medians: tuple[tuple[float, ...], ...]
    means: tuple[tuple[float, ...], ...]
    dropped: int
    disturbed: int
    """How many pairs were disturbed, whether they were dropped or not."""
    reasons: tuple[tuple[str, int], ...]
    """What disturbed pairs, most frequent first."""

    @property
    def pairs(self) -> int:
        """How many pairs are in the estimate."""
        return sum(len(launch) for launch in self.medians)

    @property
    def usable(self) -> int:
        """How many launches are in the estimate."""
        return sum(1 for launch in self.medians if launch)

    @property
    def busy(self) -> bool:
        """Whether most pairs were disturbed, so that all of them had to be kept."""
        return self.disturbed > DIRTY_SHARE_LIMIT * max(1, self.pairs + self.dropped)


@dataclass(frozen=True, kw_only=True)
class _Pair:
    launch: int
    median: float
    mean: float
    why: tuple[str, ...]


def pair_blocks(blocks: Iterable[Block], baseline: str, candidate: str) -> PairedLaunches:
    """Pair the two variants' blocks round by round."""
    pairs = _pairs(blocks, baseline, candidate)
    reasons = Counter(reason for pair in pairs for reason in pair.why)
    disturbed = sum(1 for pair in pairs if pair.why)
    busy = disturbed > DIRTY_SHARE_LIMIT * len(pairs)
    kept: dict[int, list[_Pair]] = {pair.launch: [] for pair in pairs}
    for pair in pairs:
        if busy or not pair.why:
            kept[pair.launch].append(pair)
    for launch, found in kept.items():
        if 0 < len(found) < MIN_CLEAN_PAIRS:
            reasons["too few clean pairs in the launch"] += len(found)
            kept[launch] = []
    used = sum(len(found) for found in kept.values())
    return PairedLaunches(
        medians=tuple(tuple(pair.median for pair in found) for found in kept.values()),
        means=tuple(tuple(pair.mean for pair in found) for found in kept.values()),
        dropped=len(pairs) - used,
        disturbed=disturbed,
        reasons=tuple(reasons.most_common()),
    )


def _pairs(blocks: Iterable[Block], baseline: str, candidate: str) -> list[_Pair]:
    rounds: dict[tuple[int, int], dict[str, Block]] = defaultdict(dict)
    for block in blocks:
        if block.variant in {baseline, candidate}:
            rounds[block.launch, block.round][block.variant] = block
    found = []
    for (launch, _), sides in sorted(rounds.items()):
        if len(sides) < 2:  # noqa: PLR2004 - a round that was cut off
            continue
        base, other = sides[baseline], sides[candidate]
        found.append(
            _Pair(
                launch=launch,
                median=math.log(base.median_ns / other.median_ns),
                mean=math.log(base.mean_ns / other.mean_ns),
                why=tuple(sorted({*base.dirty, *other.dirty})),
            )
        )
    return found
