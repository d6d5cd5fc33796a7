"""A block: a batch of timed iterations of one variant, with the guard readings around it.

A block is the smallest recorded unit: the durations of its iterations, the clocks, and the guard
readings. Pairs, launches and comparisons are computed from blocks, so that a later method can be
applied to an old run. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, kw_only=True)
class GuardReading:
    """Readings of the worker's process and the machine around a block. None: unavailable."""

    cpu_ns: int | None = None
    run_queue_wait_ns: int | None = None
    involuntary_switches: int | None = None
    major_faults: int | None = None
    steal_ns: int | None = None
    """Steal time of the CPUs that the worker may run on, in whole kernel ticks."""
    steal_certain_ns: int | None = None
    """The part of it that rounding to ticks cannot explain."""
    watched_ns: int | None = None
    """Time between the controller's readings before and after the block; longer than the timed part."""
    swapped_pages: int | None = None
    """Pages swapped out and in, by all processes."""
    memory_stall_ns: int | None = None
    """Time during which some process waited for memory (pressure stall information)."""
    throttle_events: int | None = None
    """Thermal throttling events of the CPU."""
    cooling_state: int | None = None
    """State of the kernel's thermal cooling of the CPU; 0 is off."""
    cpu_temperature_c: float | None = None
    """Temperature of the hottest CPU sensor after the block."""
    probe_before_ns: int | None = None
    probe_after_ns: int | None = None
    """Duration of the frequency probe (a fixed amount of work) on the core of the timing thread."""
    probe_usual_ns: int | None = None
    """Typical probe duration around this variant's blocks of the launch so far."""
    probe_limit_ns: int | None = None
    """Probe duration above which the core counts as slowed down; None while it is undetermined."""
    sm_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    gpu_temperature_c: int | None = None
    gpu_power_w: float | None = None
    other_gpu_processes: int | None = None
    """Foreign processes that recently computed on the GPU."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A short batch of timed iterations of one variant."""

    launch: int
    round: int
    position: int
    variant: str
    seat: int
    inner: int
    """Calls per sample; a sample is the mean duration of that many calls."""
    samples_ns: tuple[float, ...]
    started_ns: int
    wall_ns: int
    guard: GuardReading
    dirty: tuple[str, ...] = ()
    """Why the block is excluded from the estimate; empty when it is clean."""
    whole_process: bool = False
    """Whether the sample is the life of a process; a launch then has one pair."""

    @property
    def median_ns(self) -> float:
        """The block's time: the median over its samples, robust against a single preemption."""
        return median(self.samples_ns)

    @property
    def mean_ns(self) -> float:
        """The mean over the samples, including disturbances."""
        return sum(self.samples_ns) / len(self.samples_ns)
