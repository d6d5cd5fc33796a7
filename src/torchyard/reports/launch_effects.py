"""What each launch said by itself, and why pairs were dropped: for charts and details.

Takes the same pairs as the estimate (two blocks of one launch and round, both clean) and shows
them; it decides nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

from torchyard.core.comparison import Comparison
from torchyard.reports.plain_text import one_line
from torchyard.results.run_reader import Run

__all__ = ["BlockTimes", "LaunchEffects", "block_times", "effects_of"]


@dataclass(frozen=True, kw_only=True)
class LaunchEffects:
    """The speedup of each launch, and how often each guard dropped a pair."""

    speedups: tuple[float, ...] = ()
    dropped: tuple[tuple[str, int], ...] = ()


@dataclass(kw_only=True)
class BlockTimes:
    """Log times of one variant by launch and round, and what its dirty blocks were dropped for."""

    clean: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    dirty: dict[tuple[int, int], set[str]] = field(default_factory=lambda: defaultdict(set))


def block_times(run: Run) -> dict[tuple[str, str], BlockTimes]:
    """One pass over the samples: the times by workload label and variant."""
    times: dict[tuple[str, str], BlockTimes] = defaultdict(BlockTimes)
    for label, block in run.blocks():
        place = (block.launch, block.round)
        found = times[label, block.variant]
        if block.dirty:
            found.dirty[place].update(one_line(reason) for reason in block.dirty)
        elif block.samples_ns and block.median_ns > 0:
            found.clean[place].append(math.log(block.median_ns))
    return times


def effects_of(
    comparison: Comparison, times: Mapping[tuple[str, str], BlockTimes]
) -> LaunchEffects:
    """The comparison's launches, from the times of its two variants."""
    label = comparison.workload.label
    baseline = times.get((label, comparison.baseline), BlockTimes())
    candidate = times.get((label, comparison.candidate), BlockTimes())
    launches: dict[int, list[float]] = defaultdict(list)
    dropped: Counter[str] = Counter()
    for place in sorted(baseline.clean.keys() | baseline.dirty.keys()):
        if place not in candidate.clean and place not in candidate.dirty:
            continue
        reasons = baseline.dirty.get(place, set()) | candidate.dirty.get(place, set())
        dropped.update(reasons)
        if not reasons:
            ratio = fmean(baseline.clean[place]) - fmean(candidate.clean[place])
            launches[place[0]].append(ratio)
    return LaunchEffects(
        speedups=tuple(math.exp(median(ratios)) for ratios in launches.values()),
        dropped=tuple(dropped.most_common()),
    )
