"""A block: what one worker timed between two messages, and whether a guard marked it as disturbed.

A block is the smallest unit that is recorded: the durations of its iterations, the clocks, and the
guard readings. Pairs, launches and comparisons are computed from blocks, so that a later method can
be applied to an old run. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

__all__ = ["Block", "GuardReading"]


@dataclass(frozen=True, kw_only=True)
class GuardReading:
    """What happened to the worker's process and to the machine around a block. None: unavailable."""

    cpu_ns: int | None = None
    run_queue_wait_ns: int | None = None
    involuntary_switches: int | None = None
    major_faults: int | None = None
    steal_ns: int | None = None
    """Taken by the host from the CPUs that the worker may run on, in whole ticks of the kernel."""
    steal_certain_ns: int | None = None
    """The part of it that rounding to ticks cannot explain."""
    watched_ns: int | None = None
    """From the yard's reading before the block to the one after it; longer than the timed part."""
    swapped_pages: int | None = None
    """Written to swap and read back, by all processes."""
    memory_stall_ns: int | None = None
    """While some process waited for memory."""
    throttle_events: int | None = None
    """How often the processor slowed itself down because of heat."""
    cooling_state: int | None = None
    """How far the kernel holds the processor down because of heat; 0 is not at all."""
    cpu_temperature_c: float | None = None
    """After the block, of the hottest sensor of the processor."""
    probe_before_ns: int | None = None
    probe_after_ns: int | None = None
    """What a fixed piece of work took on the core of the timing thread, beside the block."""
    probe_usual_ns: int | None = None
    """The same as it was around this variant's blocks of the launch so far."""
    probe_limit_ns: int | None = None
    """From where on the core counts as slowed down; None while too little is known of it."""
    sm_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    gpu_temperature_c: int | None = None
    gpu_power_w: float | None = None
    other_gpu_processes: int | None = None
    """Processes that are not ours and computed on the GPU lately."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A short batch of timed iterations of one variant."""

    launch: int
    round: int
    position: int
    variant: str
    seat: int
    inner: int
    """Calls inside one sample; a sample is the mean duration of that many calls."""
    samples_ns: tuple[float, ...]
    started_ns: int
    wall_ns: int
    guard: GuardReading
    dirty: tuple[str, ...] = ()
    """Why the block is kept out of the estimate; empty when it is clean."""

    @property
    def median_ns(self) -> float:
        """The block's time: the median over its samples, which one preemption cannot move."""
        return median(self.samples_ns)

    @property
    def mean_ns(self) -> float:
        """What the iterations cost on average, disturbances included."""
        return sum(self.samples_ns) / len(self.samples_ns)
