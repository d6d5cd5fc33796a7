"""Guards: was a block disturbed? Judged from readings that need no root.

A block's time is the median of its samples, so a short disturbance does not move it; a block is
dirty when so much of it was disturbed that the median may have moved too. A pair with a dirty block
is kept in the record and left out of the estimate. Thresholds are shares of the block's wall time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torchyard.core.block import GuardReading

__all__ = ["DIRTY_SHARE_LIMIT", "MIN_CLEAN_PAIRS", "judge", "reading_from"]

WAIT_SHARE_LIMIT: Final = 0.10
"""Waiting for a core, summed over threads. Of the blocks of two runs on a quiet two-core machine the
median waited 0.06 % and 97 of 100 less than 3 %; of two runs beside other busy processes the median
waited 39 % and 50 %. The limit lies between; it was not tuned."""
WAIT_SHARE_LIMIT_FEW_SAMPLES: Final = 0.02
"""With fewer samples than this many the median has nothing to choose from."""
FEW_SAMPLES: Final = 5
STEAL_SHARE_LIMIT: Final = 0.05
CPU_SHARE_FLOOR: Final = 0.90
SWITCHES_PER_SECOND_LIMIT: Final = 100.0
MIN_CLEAN_PAIRS: Final = 3
"""A launch with fewer clean pairs has no median worth the name and is left out."""
DIRTY_SHARE_LIMIT: Final = 0.5
"""With more dirty pairs than this the machine counts as busy throughout."""

_HARMFUL_THROTTLE: Final = frozenset(
    {"hardware slowdown", "software thermal", "hardware thermal", "power brake"}
)
"""Not the power cap: a kernel that draws much power reaches it by itself (seen on an H200 with
bfloat16 products), so it belongs to the variant and is recorded, not held against the block."""


def reading_from(readings: Mapping[str, int | None]) -> GuardReading:
    """The worker's readings as a record."""
    return GuardReading(
        cpu_ns=readings.get("cpu_ns"),
        run_queue_wait_ns=readings.get("run_queue_wait_ns"),
        involuntary_switches=readings.get("involuntary_switches"),
        major_faults=readings.get("major_faults"),
        steal_ns=readings.get("steal_ns"),
    )


def judge(reading: GuardReading, *, wall_ns: int, samples: int, threads: int) -> tuple[str, ...]:
    """Why the block is dirty; empty when it is clean."""
    reasons: list[str] = []
    wall = max(1, wall_ns)
    if reading.run_queue_wait_ns is not None:
        limit = WAIT_SHARE_LIMIT if samples >= FEW_SAMPLES else WAIT_SHARE_LIMIT_FEW_SAMPLES
        share = reading.run_queue_wait_ns / (wall * max(1, threads))
        if share > limit:
            reasons.append("waited for a core")
    else:
        switches = reading.involuntary_switches
        if switches is not None and switches * 1e9 / wall > SWITCHES_PER_SECOND_LIMIT:
            reasons.append("preempted")
        if threads == 1 and reading.cpu_ns is not None and reading.cpu_ns < CPU_SHARE_FLOOR * wall:
            reasons.append("off the core")
    if reading.steal_ns is not None and reading.steal_ns / (wall * threads) > STEAL_SHARE_LIMIT:
        reasons.append("stolen by the host")
    if reading.major_faults:
        reasons.append("read pages from disk")
    reasons.extend(
        f"GPU clock held: {reason}"
        for reason in reading.throttle_reasons
        if reason in _HARMFUL_THROTTLE
    )
    return tuple(reasons)
