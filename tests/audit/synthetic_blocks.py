"""Synthetic blocks with known noise: drift, process-to-process variation, disturbed blocks."""

from __future__ import annotations

import math
import random
from collections.abc import Container, Mapping
from typing import Any

from torchyard.audit.model import Audit
from torchyard.audit.noise_audit import AuditData, audit_of
from torchyard.core.block import Block, GuardReading
from torchyard.core.comparison import Comparison
from torchyard.core.study import Budget, Workload
from torchyard.machine.load_monitor import LoadSample
from torchyard.stats.estimate import estimate
from torchyard.stats.pairs import pair_blocks

__all__ = ["KERNEL", "VARIANTS", "make_blocks", "synthetic_audit"]

KERNEL = Workload(suite="kernels", name="layered-mlp")
VARIANTS = ("one", "other")
START_S, MEASURE_S, ROUNDS = 2.5, 2.0, 9
FIRST_NS = 7_000_000_000_000


def make_blocks(
    seed: int,
    *,
    launches: int = 13,
    process_sd: float = 0.0,
    pair_sd: float = 0.0,
    drift_per_minute: float = 0.0,
    dirty_rounds: Container[int] = (),
    dirty_cost: float = 0.0,
    difference: float = 0.0,
) -> list[Block]:
    """`process_sd`: of the difference between two processes of a launch; `pair_sd`: of one pair."""
    chance = random.Random(seed)
    blocks: list[Block] = []
    block_s = MEASURE_S / ROUNDS / 2
    for launch in range(launches):
        levels = [chance.gauss(0.0, process_sd / math.sqrt(2)) for _ in VARIANTS]
        for number in range(ROUNDS):
            order = list(enumerate(VARIANTS))
            chance.shuffle(order)
            for position, (side, name) in enumerate(order):
                at_s = launch * (START_S + MEASURE_S) + (2 * number + position) * block_s
                marked = number in dirty_rounds
                log = (
                    levels[side]
                    + side * difference
                    + chance.gauss(0.0, pair_sd / math.sqrt(2))
                    + drift_per_minute * at_s / 60
                    + (dirty_cost if marked else 0.0)
                )
                time_ns = 1e6 * math.exp(log)
                blocks.append(
                    Block(
                        launch=launch,
                        round=number,
                        position=position,
                        variant=name,
                        seat=number,
                        inner=1,
                        samples_ns=(time_ns,),
                        started_ns=FIRST_NS + int(at_s * 1e9),
                        wall_ns=int(block_s * 0.9 * 1e9),
                        guard=GuardReading(),
                        dirty=("waited for a core",) if marked else (),
                    )
                )
    return blocks


def synthetic_audit(
    blocks: list[Block], *, samples: tuple[LoadSample, ...] = (), **changes: Any
) -> Audit:
    """The audit of these blocks, with the comparison that a session would have made."""
    paired = pair_blocks(blocks, *VARIANTS)
    estimated = estimate(paired.medians, looks=(), budget=Budget(precision_goal=0.0))
    launches: list[Mapping[str, Any]] = [
        {
            "launch": number,
            "start_s": 6.0 if number == 0 else START_S,
            "timing": {"wall_s": MEASURE_S},
        }
        for number in sorted({block.launch for block in blocks})
    ]
    data = {
        "started": "2025-01-02T03:04:05+00:00",
        "asked_s": 60.0,
        "kernel": KERNEL.label,
        "threads": 2,
        "sides": VARIANTS,
        "blocks": tuple(blocks),
        "launches": tuple(launches),
        "comparison": Comparison(
            workload=KERNEL,
            baseline=VARIANTS[0],
            candidate=VARIANTS[1],
            verdict=estimated.verdict,
            estimate=estimated,
        ),
        "samples": samples,
        **changes,
    }
    return audit_of(AuditData(**data))
