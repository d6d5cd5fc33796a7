"""Two variants of one run: paired again from its recorded blocks.

All variants of a run take turns in every round, so any two of them are paired, also two candidates
that were never the baseline. Looks are taken where the run took them: a candidate leaves when it is
decided against the baseline, which depends on the data, so the interval must hold for every launch
at which that could have happened.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchyard.core.block import Block
from torchyard.core.comparison import Comparison, Estimate
from torchyard.measure.pairs import PairedLaunches, pair_blocks
from torchyard.results.run_reader import Run
from torchyard.stats.estimate import decided, estimate
from torchyard.stats.sequential import Look
from torchyard.stats.verdicts import verdict_of

__all__ = ["RunBlocks", "pair_variants", "read_blocks"]

_SHORT_OF_ONE = 0.999
"""Only a session that used up its time may claim the whole of alpha."""
_TINY = 1e-6
RunBlocks = Mapping[str, Sequence[Block]]


def read_blocks(run: Run) -> RunBlocks:
    """One pass over the samples: every block that lasted, by its workload's label."""
    found: dict[str, list[Block]] = defaultdict(list)
    for label, block in run.blocks():
        if block.samples_ns and block.median_ns > 0:
            found[label].append(block)
    return found


def pair_variants(
    run: Run, label: str, one: str, other: str, blocks: RunBlocks
) -> tuple[PairedLaunches, Estimate]:
    """The pairs of both variants and what they say; the ratio is time of one over time of other."""
    own = [block for block in blocks.get(label, ()) if block.variant in {one, other}]
    paired = pair_blocks(own, one, other)
    found = estimate(
        paired.medians,
        looks=_looks(run, label, (one, other), own, len(paired.medians)),
        budget=run.study.budget,
        pairs_dropped=paired.dropped,
        mean_launches=paired.means,
        never_same=paired.never_same,
    )
    return paired, found


def _looks(
    run: Run, label: str, names: tuple[str, str], blocks: Sequence[Block], launches: int
) -> list[Look]:
    """A look after every launch that both are in, at the share of the time used by then."""
    if not launches:
        return []
    records = [record for record in run.launches() if record.get("workload") == label]
    shares = _shares(records, run.study.budget.time_s)
    rounds: dict[tuple[int, int], set[str]] = defaultdict(set)
    for block in blocks:
        rounds[block.launch, block.round].add(block.variant)
    both = sorted({launch for (launch, _), seen in rounds.items() if len(seen) > 1})
    looks: list[Look] = []
    for count, launch in enumerate(both, start=1):
        used = max(shares.get(launch, _SHORT_OF_ONE), looks[-1].fraction if looks else 0.0)
        looks.append(Look(launches=count, fraction=used))
    last = max((record.get("launch", 0) for record in records), default=both[-1])
    if both[-1] >= last and not all(_was_decided(row, run) for row in _rows(run, label, names)):
        looks[-1] = Look(launches=looks[-1].launches, fraction=1.0)
    return looks


def _shares(records: Sequence[Mapping[str, Any]], time_s: float) -> dict[int, float]:
    """Launch -> share of the time allowed when it ended; starting the first one is not counted."""
    shares: dict[int, float] = {}
    elapsed_s = 0.0
    for number, record in enumerate(records):
        timing = record.get("timing")
        wall_s = timing.get("wall_s", 0.0) if isinstance(timing, Mapping) else 0.0
        elapsed_s += float(wall_s) + (float(record.get("start_s") or 0.0) if number else 0.0)
        share = elapsed_s / time_s if time_s > 0 else 1.0
        shares[int(record.get("launch", number))] = min(_SHORT_OF_ONE, max(_TINY, share))
    return shares


def _rows(run: Run, label: str, names: tuple[str, str]) -> list[Comparison]:
    return [
        row for row in run.comparisons if row.workload.label == label and row.candidate in names
    ]


def _was_decided(row: Comparison, run: Run) -> bool:
    """Whether it could leave: a verdict of its own, before those of the suite were corrected."""
    found, budget = row.estimate, run.study.budget
    if found is None or found.interval is None or not found.interval.low > 0.0 or found.withheld:
        return False
    low, high = math.log(found.interval.low), math.log(found.interval.high)
    return decided(replace(found, verdict=verdict_of(low, high, budget.margin)), budget)
