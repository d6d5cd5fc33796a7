"""Decide whether a measured block was disturbed, and report which guards were available.

A block's time is the median of its samples, so a short disturbance does not move it; a block is
dirty when so much of it was disturbed that the median may have moved too. What happens to a dirty
block is decided elsewhere. Guards that cannot be read are reported once, not with every block.

`ProbeBaseline` holds the usual duration of the frequency probe and the limit above which the core
counts as slowed down. The level is the median over the launch so far, separately for each
variant: a variant can slow the core by what it computes (wide vector instructions lower the clock
of some CPUs for a while), and that belongs to its time. It starts again with each launch, because
the two sides of a pair run at the same clock as long as it does not change within the launch.

The limit adapts to the machine (`benchmarks/guard_cost.py`). On a virtual machine with two
Neoverse N1 cores under a load of 3 to 7, the slower probe of a block was at most 1.5 % above the
level in 790 blocks, and at most 0.6 % in 99 of 100: there a clock that falls by 5 % is detected,
and waiting is not mistaken for it. On 16 cores of a shared Xeon the clock goes up and down by 10
% within milliseconds. Beside 24 to 55 of 100 blocks a probe was 5 % slow, and without those
blocks times scattered hardly less (17.1 and 15.6 %, 11.3 and 8.0 %, 8.2 and 7.5 %, 11.9 and 11.9
% with four workloads); with the adaptive limit, 2 to 5 of 100 are dirty.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from statistics import median
from typing import Any, Final

from torchyard.core.block import GuardReading

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
"""Why a block can be dirty, besides throttling of a GPU; `torchyard explain` describes each."""

WAIT_SHARE_LIMIT: Final = 0.10
"""Waiting for a core, summed over threads. In two runs on a quiet two-core machine the median block
waited 0.06 % and 97 % of the blocks less than 3 %; in two runs with other busy processes the median
waited 39 % and 50 %. The limit lies between; it was not tuned."""
WAIT_SHARE_LIMIT_FEW_SAMPLES: Final = 0.02
"""The limit below `FEW_SAMPLES` samples, where the median does not filter outliers."""
FEW_SAMPLES: Final = 5
STEAL_SHARE_LIMIT: Final = 0.05
CPU_SHARE_FLOOR: Final = 0.90
SWITCHES_PER_SECOND_LIMIT: Final = 100.0
SWAPPED_PAGES_PER_SECOND_LIMIT: Final = 256.0
"""1 MiB of small pages. A page of the worker itself counts as a major fault; a few pages of other
programs do not disturb it. Chosen, not measured."""
MEMORY_STALL_SHARE_LIMIT: Final = 0.05
"""As for steal time: above it, the median may have moved. Chosen, not measured."""
MEMORY_STALL_PERIOD_NS: Final = 2_000_000_000
"""The kernel updates the total every two seconds, so a block may include stalls of that time."""

_HARMFUL_THROTTLE: Final = frozenset(
    {"hardware slowdown", "software thermal", "hardware thermal", "power brake"}
)
"""Without the power cap: a kernel that draws much power reaches it by itself (seen on an H200 with
bfloat16 matrix products), so it belongs to the variant. It is recorded and the block stays clean."""
_FIELDS: Final = frozenset(field.name for field in fields(GuardReading))


def reading_from(*readings: Mapping[str, Any]) -> GuardReading:
    """Combine the readings of worker and controller; unknown names are ignored."""
    values = {name: value for each in readings for name, value in each.items() if name in _FIELDS}
    return GuardReading(**values)


def judge(reading: GuardReading, *, wall_ns: int, samples: int, threads: int) -> tuple[str, ...]:
    """Return why a block is dirty; empty if it is clean. Limits are shares of its wall time."""
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
    if (reading.steal_certain_ns or 0) / (wall * max(1, threads)) > STEAL_SHARE_LIMIT:
        reasons.append(STOLEN)
    if reading.major_faults:
        reasons.append(FAULTED)
    reasons.extend(_machine_reasons(reading, wall))
    reasons.extend(
        f"GPU clock held: {reason}"
        for reason in reading.throttle_reasons
        if reason in _HARMFUL_THROTTLE
    )
    if reading.other_gpu_processes:
        reasons.append(SHARED_GPU)
    return tuple(reasons)


def _machine_reasons(reading: GuardReading, wall_ns: int) -> list[str]:
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


SMALLEST_LIMIT: Final = 0.05
"""Three times the maximum observed at a constant clock, and two steps of 100 MHz at 4 GHz."""
SPREADS: Final = 5.0
"""Median absolute deviations above the median; 3.4 standard deviations of a normal distribution."""
FEWEST: Final = 10
"""Blocks before the machine's own spread is known; until then the probe is only recorded."""
_WINDOW: Final = 200


class ProbeBaseline:
    """Usual probe duration and its limit, updated with every block of a session."""

    def __init__(self) -> None:
        self._levels: dict[str, list[int]] = {}
        self._deviations: deque[float] = deque(maxlen=_WINDOW)

    def begin_launch(self) -> None:
        """Reset the levels; the deviations of this machine are kept."""
        self._levels.clear()

    def beside(self, variant: str, reading: GuardReading) -> GuardReading:
        """Add the block, and return the reading with the usual duration and the limit, if known."""
        probes = [
            probe
            for probe in (reading.probe_before_ns, reading.probe_after_ns)
            if probe is not None
        ]
        if not probes:
            return reading
        levels = self._levels.setdefault(variant, [])
        insort(levels, min(probes))
        usual_ns = levels[(len(levels) - 1) // 2]
        limit = self._limit()
        self._deviations.append(max(probes) / usual_ns)
        return replace(
            reading,
            probe_usual_ns=usual_ns,
            probe_limit_ns=None if limit is None else round(limit * usual_ns),
        )

    def _limit(self) -> float | None:
        """Return the limit as a multiple of the level."""
        if len(self._deviations) < FEWEST:
            return None
        centre = median(self._deviations)
        spread = median(abs(deviation - centre) for deviation in self._deviations)
        return max(1 + SMALLEST_LIMIT, centre + SPREADS * spread)


_WORKER_GUARDS: Final = (
    (
        "run-queue wait",
        "run_queue_wait_ns",
        "the worker has no /proc/self/task/*/schedstat; context switches and CPU time are used instead",
    ),
    ("steal", "steal_ns", "/proc/stat has no steal time"),
    ("switches", "involuntary_switches", "the worker could not read them"),
    ("major faults", "major_faults", "the worker could not read them"),
    ("frequency probe", "probe_before_ns", "the workload does not run on the CPU"),
)
"""Name, field of the reading, and the reason if it is missing."""


def guard_states(
    readings: Iterable[GuardReading], machine_states: Mapping[str, str]
) -> dict[str, str]:
    """Return guard name -> why it is unavailable; empty if it is available."""
    all_readings = list(readings)
    states = {
        name: "" if any(getattr(each, field) is not None for each in all_readings) else because
        for name, field, because in _WORKER_GUARDS
    }
    return states | dict(machine_states)
