"""Who was there when blocks ran: joins what a lookout saw with the blocks, by time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from torchyard.core.audit import Disturbance
from torchyard.core.block import Block
from torchyard.machine.lookout.kinds import KINDS, advice_for
from torchyard.machine.lookout.lookout import Stretch
from torchyard.machine.lookout.source import Disturber

__all__ = ["find_disturbances"]

MOST_SHOWN: Final = 8
LEAST_SHARE: Final = 0.05
"""Beside fewer blocks, and below its limit on average, somebody is not mentioned."""
FEWEST_BLOCKS: Final = 8
"""On either side, to say how much longer blocks took."""


def find_disturbances(
    blocks: Sequence[Block], stretches: Sequence[Stretch]
) -> tuple[Disturbance, ...]:
    """The most harmful first, measured in how far they are above their limit."""
    if not blocks or not stretches:
        return ()
    beside = _beside(blocks, stretches)
    excess = _excess(blocks)
    found: list[tuple[float, Disturbance]] = []
    for who in sorted({who for amounts in beside for who in amounts}):
        kind = KINDS[who.kind]
        amounts = [there.get(who, 0.0) for there in beside]
        mean = sum(amounts) / len(amounts)
        marked = [amount > kind.limit for amount in amounts]
        share = sum(marked) / len(marked)
        if share < LEAST_SHARE and mean <= kind.limit:
            continue
        disturbance = Disturbance(
            kind=who.kind,
            what=who.what,
            amount=mean,
            unit=kind.unit,
            share_of_blocks=share,
            slower=_slower(excess, marked),
            advice=advice_for(who),
        )
        found.append((mean / kind.limit, disturbance))
    found.sort(key=lambda item: -item[0])
    return tuple(disturbance for _, disturbance in found[:MOST_SHOWN])


def _beside(blocks: Sequence[Block], stretches: Sequence[Stretch]) -> list[dict[Disturber, float]]:
    """For each block, how much of everybody: the mean over the time of the block."""
    starts = [stretch.started_ns for stretch in stretches]
    found: list[dict[Disturber, float]] = []
    for block in blocks:
        ended_ns = block.started_ns + block.wall_ns
        amounts: dict[Disturber, float] = defaultdict(float)
        first = max(0, bisect_right(starts, block.started_ns) - 1)
        for stretch in _until(stretches[first:], ended_ns):
            shared_ns = min(ended_ns, stretch.ended_ns) - max(block.started_ns, stretch.started_ns)
            if shared_ns > 0:
                for who, amount in stretch.amounts.items():
                    amounts[who] += amount * shared_ns / max(1, block.wall_ns)
        found.append(dict(amounts))
    return found


def _until(stretches: Iterable[Stretch], ended_ns: int) -> Iterable[Stretch]:
    for stretch in stretches:
        if stretch.started_ns >= ended_ns:
            return
        yield stretch


def _excess(blocks: Sequence[Block]) -> list[float]:
    """Log time of each block above the median of its own process: processes differ anyway."""
    logs = [math.log(block.median_ns) for block in blocks]
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for block, log in zip(blocks, logs, strict=True):
        groups[block.launch, block.variant].append(log)
    middles = {key: median(values) for key, values in groups.items()}
    return [
        log - middles[block.launch, block.variant] for block, log in zip(blocks, logs, strict=True)
    ]


def _slower(excess: Sequence[float], marked: Sequence[bool]) -> float | None:
    beside = [value for value, mark in zip(excess, marked, strict=True) if mark]
    alone = [value for value, mark in zip(excess, marked, strict=True) if not mark]
    if min(len(beside), len(alone)) < FEWEST_BLOCKS:
        return None
    return math.expm1(median(beside) - median(alone))
