"""What one worker timed between two messages, and whether it can be believed.

A block is the smallest thing that is recorded: the durations of its iterations, the clocks beside
them, and what the guards saw. Pairs, launches and comparisons are computed from blocks, so that
any later method can be applied to an old run. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

__all__ = ["Block", "GuardReading"]


@dataclass(frozen=True, kw_only=True)
class GuardReading:
    """What happened to the worker's process while the block ran. None means unavailable."""

    cpu_ns: int | None = None
    run_queue_wait_ns: int | None = None
    involuntary_switches: int | None = None
    major_faults: int | None = None
    steal_ns: int | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()


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
