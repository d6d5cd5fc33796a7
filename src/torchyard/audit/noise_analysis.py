"""Derive an audit from blocks and monitor samples: spreads, drift, disturbances.

Disturbances are joined with blocks by time. Pure: no clock, no files, no processes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from torchyard.audit.model import Audit, AuditLaunch, BlockPoint, Disturbance, Drift
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
from torchyard.machine.monitor.load_monitor import KINDS, Stretch, advice_for
from torchyard.machine.monitor.sources import Disturber
from torchyard.stats.pairs import PairedLaunches, pair_blocks

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


MOST_POINTS: Final = 600
"""Blocks in the picture; more would only be drawn over each other."""
BENCH_LAUNCHES: Final = 60
"""What `torchyard bench` starts at most unless it is told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything that was seen."""

    started: str
    asked_s: float
    interrupted: bool = False
    label: str = ""
    machine: tuple[tuple[str, str], ...] = ()
    target: tuple[tuple[str, str], ...] = ()
    kernel: str
    threads: int
    cores: tuple[int, ...] = ()
    sides: tuple[str, str]
    blocks: tuple[Block, ...]
    launches: tuple[Mapping[str, Any], ...]
    """Records of the session: `launch`, `start_s`, `timing.wall_s`."""
    comparison: Comparison
    stretches: tuple[Stretch, ...] = ()
    lookout_cost: float = 0.0
    unavailable: Mapping[str, str] = field(default_factory=dict)


def audit_of(seen: Measured) -> Audit:
    """What the blocks say of the machine."""
    paired = pair_blocks(seen.blocks, *seen.sides)
    launches = _launches(seen, paired)
    effects = [one.effect for one in launches if one.effect is not None]
    spreads = [one.spread for one in launches if one.spread is not None]
    between = spread_between(effects)
    launch_s = _launch_s(seen)
    estimate = seen.comparison.estimate
    dirty = [block for block in seen.blocks if block.dirty]
    chosen = _usable(seen.blocks)
    every = max(1, -(-len(seen.blocks) // MOST_POINTS))
    resolvable = (
        tuple(resolvable_in(minutes, between, launch_s=launch_s) for minutes in MINUTES)
        if launch_s
        else ()
    )
    return Audit(
        started=seen.started,
        asked_s=seen.asked_s,
        measured_s=launches[-1].ended_s if launches else 0.0,
        interrupted=seen.interrupted,
        label=seen.label,
        machine=seen.machine,
        target=seen.target,
        kernel=seen.kernel,
        threads=seen.threads,
        cores=seen.cores,
        time_ns=median(block.median_ns for block in chosen) if chosen else None,
        launches=launches,
        pairs=paired.pairs,
        blocks=len(seen.blocks),
        dirty_blocks=len(dirty),
        dirty=tuple(Counter(why for block in dirty for why in block.dirty).most_common()),
        within=spread_within(spreads),
        between=between,
        unpaired=spread_between([math.log(one.levels_ns[0]) for one in launches]),
        drift=_drift(launches, chosen),
        verdict=seen.comparison.state,
        ratio=None if estimate is None or not estimate.launches else estimate.speedup,
        ratio_interval=None if estimate is None else estimate.interval,
        resolvable=resolvable,
        assumptions=_assumptions(seen, launches, launch_s),
        disturbances=find_disturbances(seen.blocks, seen.stretches),
        watched=_watched(seen),
        series=tuple(
            BlockPoint(
                at_s=_since_first_s(seen.blocks, block),
                launch=block.launch,
                side=seen.sides.index(block.variant),
                time_ns=block.median_ns,
                dirty=bool(block.dirty),
            )
            for block in seen.blocks[::every]
        ),
        series_every=every,
        notes=(*seen.comparison.untrusted, *seen.comparison.notes),
    )


def _launches(seen: Measured, paired: PairedLaunches) -> tuple[AuditLaunch, ...]:
    """Launches of which both sides have a block, in order."""
    by_launch: dict[int, dict[str, list[Block]]] = defaultdict(lambda: defaultdict(list))
    for block in seen.blocks:
        by_launch[block.launch][block.variant].append(block)
    starts = {record["launch"]: float(record["start_s"]) for record in seen.launches}
    complete = [
        number
        for number in sorted(by_launch)
        if all(by_launch[number][side] for side in seen.sides)
    ]
    found: list[AuditLaunch] = []
    for number, pairs in zip(complete, paired.medians, strict=True):
        blocks = [block for side in seen.sides for block in by_launch[number][side]]
        levels = [
            median(block.median_ns for block in _usable(by_launch[number][side]))
            for side in seen.sides
        ]
        found.append(
            AuditLaunch(
                began_s=min(_since_first_s(seen.blocks, block) for block in blocks),
                ended_s=max(
                    _since_first_s(seen.blocks, block) + block.wall_ns / 1e9 for block in blocks
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
    return tuple(found)


def _usable(blocks: Sequence[Block]) -> Sequence[Block]:
    """The clean ones; all of them where there is no clean one."""
    return [block for block in blocks if not block.dirty] or blocks


def _since_first_s(blocks: Sequence[Block], block: Block) -> float:
    """Workers and all launches share one clock."""
    return (block.started_ns - blocks[0].started_ns) / 1e9


def _launch_s(seen: Measured) -> float:
    """What a launch costs, starting included; the first start also finds the length of blocks."""
    if not seen.launches:
        return 0.0
    starts = [float(record["start_s"]) for record in seen.launches]
    measuring = [float(record["timing"]["wall_s"]) for record in seen.launches]
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
    seen: Measured, launches: Sequence[AuditLaunch], launch_s: float
) -> tuple[str, ...]:
    if not launches or not launch_s:
        return ()
    pairs = median(one.pairs for one in launches)
    threads = f"{seen.threads} thread{'s' if seen.threads != 1 else ''}"
    many = int(60 * MINUTES[-1] / launch_s)
    said = [
        f"launches as here: {launch_s:.1f} s each, starting included, with {pairs:.0f} pairs",
        "80% power, 5% false alarms, one look at the end, launches independent of each other",
        "variants in processes of their own, as two builds need; one process resolves more",
        f"a workload as steady as {seen.kernel} with {threads}, on a machine that stays as it was",
    ]
    if many > BENCH_LAUNCHES:
        said.append(
            f"as many launches as fit: `torchyard bench --launches {many}` for "
            f"{MINUTES[-1]} minutes, where {BENCH_LAUNCHES} is the most otherwise"
        )
    return tuple(said)


def _watched(seen: Measured) -> tuple[tuple[str, str], ...]:
    said = [
        ("looks", str(len(seen.stretches))),
        ("cost of looking", f"{seen.lookout_cost:.1%} of a core"),
    ]
    said += [(name, f"unavailable, because {why}") for name, why in seen.unavailable.items()]
    return tuple(said)
