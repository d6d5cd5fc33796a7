"""What each launch said by itself, and what disturbed blocks and pairs: for charts and details.

Takes the very pairs of the estimate and shows them; it decides nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from torchyard.core.block import Block
from torchyard.core.comparison import Comparison, GuardSummary
from torchyard.measure.guard_summary import summarize_guards
from torchyard.measure.pairs import pair_blocks
from torchyard.reports.plain_text import one_line
from torchyard.results.run_reader import Run

__all__ = ["LaunchEffects", "blocks_by_workload", "effects_of"]


@dataclass(frozen=True, kw_only=True)
class LaunchEffects:
    """The speedup of each launch, and how often each guard dropped a pair."""

    speedups: tuple[float, ...] = ()
    dropped: tuple[tuple[str, int], ...] = ()
    guards: GuardSummary = field(default_factory=GuardSummary)
    """From the blocks, so that runs older than the count have it, too."""


def blocks_by_workload(run: Run) -> dict[str, list[Block]]:
    """One pass over the samples: every block by its workload's label."""
    found: dict[str, list[Block]] = defaultdict(list)
    for label, block in run.blocks():
        if block.samples_ns and block.median_ns > 0:
            found[label].append(block)
    return found


def effects_of(comparison: Comparison, blocks: Mapping[str, Sequence[Block]]) -> LaunchEffects:
    """The comparison's launches, from the blocks of its two variants."""
    own = blocks.get(comparison.workload.label, ())
    pairs = pair_blocks(own, comparison.baseline, comparison.candidate)
    return LaunchEffects(
        speedups=tuple(math.exp(median(launch)) for launch in pairs.medians if launch),
        dropped=tuple((one_line(reason), count) for reason, count in pairs.reasons),
        guards=summarize_guards(own, comparison.baseline, comparison.candidate),
    )
