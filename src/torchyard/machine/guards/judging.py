"""Was a block disturbed? Judged from readings that need no root.

A block's time is the median of its samples, so a short disturbance does not move it; a block is
dirty when so much of it was disturbed that the median may have moved too. Knows nothing of pairs and
comparisons: what becomes of a dirty block is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from torchyard.core.block import GuardReading

__all__ = ["REASONS", "judge", "reading_from"]

WAITED: Final = "waited for a core"
PREEMPTED: Final = "preempted"
OFF_CORE: Final = "off the core"
STOLEN: Final = "stolen by the host"
FAULTED: Final = "read pages from disk"
SWAPPED: Final = "machine swapped"
SHORT_OF_MEMORY: Final = "memory was short"
THROTTLED: Final = "processor throttled"
SLOWED: Final = "core slowed down"
SHARED_GPU: Final = "others computed on the GPU"
REASONS: Final = (
    WAITED,
    PREEMPTED,
    OFF_CORE,
    STOLEN,
    FAULTED,
    SWAPPED,
    SHORT_OF_MEMORY,
    THROTTLED,
    SLOWED,
    SHARED_GPU,
)
"""Why a block can be dirty, besides why a GPU's clock is held down; `torchyard explain` knows each."""

WAIT_SHARE_LIMIT: Final = 0.10
"""Waiting for a core, summed over threads. Of the blocks of two runs on a quiet two-core machine the
median waited 0.06 % and 97 of 100 less than 3 %; of two runs beside other busy processes the median
waited 39 % and 50 %. The limit lies between; it was not tuned."""
WAIT_SHARE_LIMIT_FEW_SAMPLES: Final = 0.02
"""With fewer samples than this many the median has nothing to choose from."""
FEW_SAMPLES: Final = 5
STEAL_SHARE_LIMIT: Final = 0.05
TICK_NS: Final = 10_000_000
"""Stolen time is counted in ticks, nearly everywhere of this length. In runs of earlier releases one
tick is not counted: it may be a microsecond that was missing to the next whole one."""
CPU_SHARE_FLOOR: Final = 0.90
SWITCHES_PER_SECOND_LIMIT: Final = 100.0
SWAPPED_PAGES_PER_SECOND_LIMIT: Final = 256.0
"""1 MiB of small pages. Any page of the worker itself is a major fault and counts; a few pages of
other programs do not disturb it. Chosen, not measured."""
MEMORY_STALL_SHARE_LIMIT: Final = 0.05
"""As for stolen time: from there on the median may have moved. Chosen, not measured."""
MEMORY_STALL_PERIOD_NS: Final = 2_000_000_000
"""The kernel adds to the total every two seconds, so a block can see the stalls of so long a time."""

_HARMFUL_THROTTLE: Final = frozenset(
    {"hardware slowdown", "software thermal", "hardware thermal", "power brake"}
)
"""Not the power cap: a kernel that draws much power reaches it by itself (seen on an H200 with
bfloat16 products), so it belongs to the variant and is recorded, not held against the block."""
_FIELDS: Final = frozenset(field.name for field in fields(GuardReading))


def reading_from(*seen: Mapping[str, Any]) -> GuardReading:
    """What the worker and the yard read, as a record; names that it does not have are skipped."""
    known = {name: value for each in seen for name, value in each.items() if name in _FIELDS}
    return GuardReading(**known)


def judge(reading: GuardReading, *, wall_ns: int, samples: int, threads: int) -> tuple[str, ...]:
    """Why the block is dirty; empty when it is clean. Limits are shares of the block's wall time."""
    reasons: list[str] = []
    wall = max(1, wall_ns)
    if reading.run_queue_wait_ns is not None:
        limit = WAIT_SHARE_LIMIT if samples >= FEW_SAMPLES else WAIT_SHARE_LIMIT_FEW_SAMPLES
        share = reading.run_queue_wait_ns / (wall * max(1, threads))
        if share > limit:
            reasons.append(WAITED)
    else:
        switches = reading.involuntary_switches
        per_thread = (switches or 0) * 1e9 / (wall * max(1, threads))
        if per_thread > SWITCHES_PER_SECOND_LIMIT:
            reasons.append(PREEMPTED)
        if threads == 1 and reading.cpu_ns is not None and reading.cpu_ns < CPU_SHARE_FLOOR * wall:
            reasons.append(OFF_CORE)
    stolen_ns = reading.steal_certain_ns
    if stolen_ns is None:
        stolen_ns = max(0, (reading.steal_ns or 0) - TICK_NS)
    if stolen_ns / (wall * max(1, threads)) > STEAL_SHARE_LIMIT:
        reasons.append(STOLEN)
    if reading.major_faults:
        reasons.append(FAULTED)
    reasons.extend(_of_the_machine(reading, wall))
    reasons.extend(
        f"GPU clock held: {reason}"
        for reason in reading.throttle_reasons
        if reason in _HARMFUL_THROTTLE
    )
    if reading.other_gpu_processes:
        reasons.append(SHARED_GPU)
    return tuple(reasons)


def _of_the_machine(reading: GuardReading, wall_ns: int) -> list[str]:
    reasons = []
    watched_ns = max(wall_ns, reading.watched_ns or 0)
    pages_per_second = (reading.swapped_pages or 0) * 1e9 / watched_ns
    if pages_per_second > SWAPPED_PAGES_PER_SECOND_LIMIT:
        reasons.append(SWAPPED)
    stall_window_ns = max(watched_ns, MEMORY_STALL_PERIOD_NS)
    if (reading.memory_stall_ns or 0) / stall_window_ns > MEMORY_STALL_SHARE_LIMIT:
        reasons.append(SHORT_OF_MEMORY)
    if reading.throttle_events or (reading.cooling_state or 0) > 0:
        reasons.append(THROTTLED)
    slowest = max(reading.probe_before_ns or 0, reading.probe_after_ns or 0)
    if reading.probe_limit_ns is not None and slowest > reading.probe_limit_ns:
        reasons.append(SLOWED)
    return reasons
