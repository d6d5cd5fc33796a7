"""Derive an audit from blocks and monitor samples: spreads, drift, disturbances.

Disturbances are joined with blocks by time. Pure: no clock, no files, no processes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any, Final

from torchyard.audit.model import (
    Audit,
    AuditLaunch,
    AuditSetup,
    BlockPoint,
    Disturbance,
    Drift,
    effects_of,
    log_levels_of,
    spreads_of,
)
from torchyard.audit.variation import (
    MINUTES,
    deviation,
    find_drift,
    resolvable_in,
    spread_between,
    spread_within,
)
from torchyard.core.block import Block
from torchyard.core.comparison import Comparison
from torchyard.core.units import format_count
from torchyard.machine.model import UNAVAILABLE
from torchyard.machine.monitor.load_monitor import KINDS, LoadSample, advice_for
from torchyard.machine.monitor.sources import NoiseSource
from torchyard.stats.pairs import PairedLaunches, pair_blocks

MOST_SHOWN: Final = 8
LEAST_SHARE: Final = 0.05
"""A source above its threshold in fewer blocks, and below it on average, is not reported."""
FEWEST_BLOCKS: Final = 8
"""Blocks with and without a source, at least, to estimate how much longer blocks took."""


def find_disturbances(
    blocks: Sequence[Block], samples: Sequence[LoadSample]
) -> tuple[Disturbance, ...]:
    """Return the noise sources, largest multiple of their threshold first."""
    if not blocks or not samples:
        return ()
    block_amounts = _amounts_by_block(blocks, samples)
    excess = _excess(blocks)
    ranked: list[tuple[float, Disturbance]] = []
    for source in sorted({source for amounts in block_amounts for source in amounts}):
        kind = KINDS[source.kind]
        amounts = [by_source.get(source, 0.0) for by_source in block_amounts]
        mean = sum(amounts) / len(amounts)
        affected = [amount > kind.limit for amount in amounts]
        share = sum(affected) / len(affected)
        if share < LEAST_SHARE and mean <= kind.limit:
            continue
        disturbance = Disturbance(
            kind=source.kind,
            what=source.what,
            amount=mean,
            unit=kind.unit,
            share_of_blocks=share,
            slower=_slower(excess, affected),
            advice=advice_for(source),
        )
        ranked.append((mean / kind.limit, disturbance))
    ranked.sort(key=lambda item: -item[0])
    return tuple(disturbance for _, disturbance in ranked[:MOST_SHOWN])


def _amounts_by_block(
    blocks: Sequence[Block], samples: Sequence[LoadSample]
) -> list[dict[NoiseSource, float]]:
    """Return the amount of every source for each block, averaged over the time of the block."""
    starts = [sample.started_ns for sample in samples]
    amounts_by_block: list[dict[NoiseSource, float]] = []
    for block in blocks:
        ended_ns = block.started_ns + block.wall_ns
        amounts: dict[NoiseSource, float] = defaultdict(float)
        first = max(0, bisect_right(starts, block.started_ns) - 1)
        for sample in _until(samples[first:], ended_ns):
            shared_ns = min(ended_ns, sample.ended_ns) - max(block.started_ns, sample.started_ns)
            if shared_ns > 0:
                for source, amount in sample.amounts.items():
                    amounts[source] += amount * shared_ns / max(1, block.wall_ns)
        amounts_by_block.append(dict(amounts))
    return amounts_by_block


def _until(samples: Iterable[LoadSample], ended_ns: int) -> Iterable[LoadSample]:
    for sample in samples:
        if sample.started_ns >= ended_ns:
            return
        yield sample


def _excess(blocks: Sequence[Block]) -> list[float]:
    """Return the log time of each block, relative to the median of its own process."""
    logs = [math.log(block.median_ns) for block in blocks]
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for block, log in zip(blocks, logs, strict=True):
        groups[block.launch, block.variant].append(log)
    middles = {key: median(values) for key, values in groups.items()}
    return [
        log - middles[block.launch, block.variant] for block, log in zip(blocks, logs, strict=True)
    ]


def _slower(excess: Sequence[float], affected: Sequence[bool]) -> float | None:
    disturbed = [value for value, is_affected in zip(excess, affected, strict=True) if is_affected]
    quiet = [value for value, is_affected in zip(excess, affected, strict=True) if not is_affected]
    if min(len(disturbed), len(quiet)) < FEWEST_BLOCKS:
        return None
    return math.expm1(median(disturbed) - median(quiet))


MOST_POINTS: Final = 600
"""Blocks in the chart; more would overlap."""
BENCH_LAUNCHES: Final = 60
"""Default maximum of `torchyard bench --launches`."""


@dataclass(frozen=True, kw_only=True)
class AuditData(AuditSetup):
    """Everything that an audit measured."""

    sides: tuple[str, str]
    blocks: tuple[Block, ...]
    launches: tuple[Mapping[str, Any], ...]
    """Records of the session: `launch`, `start_s`, `timing.wall_s`."""
    comparison: Comparison
    samples: tuple[LoadSample, ...] = ()
    monitor_cost: float = 0.0
    unavailable: Mapping[str, str] = field(default_factory=dict)


def audit_of(data: AuditData) -> Audit:
    """Return the audit of the measured data."""
    paired = pair_blocks(data.blocks, *data.sides)
    launches = _launches(data, paired)
    between = spread_between(effects_of(launches))
    launch_s = _launch_s(data)
    estimate = data.comparison.estimate
    dirty = [block for block in data.blocks if block.dirty]
    chosen = _usable(data.blocks)
    every = max(1, -(-len(data.blocks) // MOST_POINTS))
    resolvable = (
        tuple(resolvable_in(minutes, between, launch_s=launch_s) for minutes in MINUTES)
        if launch_s
        else ()
    )
    return Audit(
        **{item.name: getattr(data, item.name) for item in fields(AuditSetup)},
        measured_s=launches[-1].ended_s if launches else 0.0,
        time_ns=median(block.median_ns for block in chosen) if chosen else None,
        launches=launches,
        pairs=paired.pairs,
        blocks=len(data.blocks),
        dirty_blocks=len(dirty),
        dirty=tuple(Counter(why for block in dirty for why in block.dirty).most_common()),
        within=spread_within(spreads_of(launches)),
        between=between,
        unpaired=spread_between(log_levels_of(launches)),
        drift=_drift(launches, chosen),
        verdict=data.comparison.state,
        ratio=None if estimate is None or not estimate.launches else estimate.speedup,
        ratio_interval=None if estimate is None else estimate.interval,
        resolvable=resolvable,
        assumptions=_assumptions(data, launches, launch_s),
        disturbances=find_disturbances(data.blocks, data.samples),
        watched=_watched(data),
        series=tuple(
            BlockPoint(
                at_s=_since_first_s(data.blocks, block),
                launch=block.launch,
                side=data.sides.index(block.variant),
                time_ns=block.median_ns,
                dirty=bool(block.dirty),
            )
            for block in data.blocks[::every]
        ),
        series_every=every,
        notes=(*data.comparison.untrusted, *data.comparison.notes),
    )


def _launches(data: AuditData, paired: PairedLaunches) -> tuple[AuditLaunch, ...]:
    """Return the launches in which both sides have a block, in order."""
    by_launch: dict[int, dict[str, list[Block]]] = defaultdict(lambda: defaultdict(list))
    for block in data.blocks:
        by_launch[block.launch][block.variant].append(block)
    starts = {record["launch"]: float(record["start_s"]) for record in data.launches}
    complete = [
        number
        for number in sorted(by_launch)
        if all(by_launch[number][side] for side in data.sides)
    ]
    launches: list[AuditLaunch] = []
    for number, pairs in zip(complete, paired.medians, strict=True):
        blocks = [block for side in data.sides for block in by_launch[number][side]]
        levels = [
            median(block.median_ns for block in _usable(by_launch[number][side]))
            for side in data.sides
        ]
        launches.append(
            AuditLaunch(
                began_s=min(_since_first_s(data.blocks, block) for block in blocks),
                ended_s=max(
                    _since_first_s(data.blocks, block) + block.wall_ns / 1e9 for block in blocks
                ),
                start_s=starts.get(number, 0.0),
                levels_ns=(levels[0], levels[1]),
                effect=median(pairs) if pairs else None,
                spread=deviation(pairs),
                pairs=len(pairs),
                dirty_blocks=sum(bool(block.dirty) for block in blocks),
                blocks=len(blocks),
            )
        )
    return tuple(launches)


def _usable(blocks: Sequence[Block]) -> Sequence[Block]:
    """Return the clean blocks, or all blocks if none is clean."""
    return [block for block in blocks if not block.dirty] or blocks


def _since_first_s(blocks: Sequence[Block], block: Block) -> float:
    """Return the start of a block since the first one; all processes share one clock."""
    return (block.started_ns - blocks[0].started_ns) / 1e9


def _launch_s(data: AuditData) -> float:
    """Return the cost of a launch with its start; the first start also calibrates, so it is skipped."""
    if not data.launches:
        return 0.0
    starts = [float(record["start_s"]) for record in data.launches]
    measuring = [float(record["timing"]["wall_s"]) for record in data.launches]
    return median(starts[1:] or starts) + sum(measuring) / len(measuring)


def _drift(launches: Sequence[AuditLaunch], blocks: Sequence[Block]) -> Drift | None:
    if not blocks:
        return None
    first_ns = min(block.started_ns for block in blocks)
    return find_drift(
        [(one.began_s + one.ended_s) / 120.0 for one in launches],
        [sum(math.log(level) for level in one.levels_ns) / 2.0 for one in launches],
        block_minutes=[(block.started_ns - first_ns) / 60e9 for block in blocks],
        block_levels=[math.log(block.median_ns) for block in blocks],
    )


def _assumptions(
    data: AuditData, launches: Sequence[AuditLaunch], launch_s: float
) -> tuple[str, ...]:
    if not launches or not launch_s:
        return ()
    pairs = median(one.pairs for one in launches)
    threads = format_count(data.threads, "thread")
    most_launches = int(60 * MINUTES[-1] / launch_s)
    assumptions = [
        f"launches as in this audit: {launch_s:.1f} s each, start included, with {pairs:.0f} pairs",
        "80% power, 5% false positives, one analysis at the end, independent launches",
        "variants in separate processes, as two builds need; a shared process resolves more",
        f"a workload as steady as {data.kernel} with {threads}, and unchanged noise",
    ]
    if most_launches > BENCH_LAUNCHES:
        assumptions.append(
            f"as many launches as fit: {MINUTES[-1]} minutes need `torchyard bench --launches "
            f"{most_launches}`; the default maximum is {BENCH_LAUNCHES}"
        )
    return tuple(assumptions)


def _watched(data: AuditData) -> tuple[tuple[str, str], ...]:
    return (
        ("load samples", str(len(data.samples))),
        ("cost of sampling", f"{data.monitor_cost:.1%} of a core"),
        *((name, UNAVAILABLE + why) for name, why in data.unavailable.items()),
    )
