"""The roofline model: the peak rates of a machine and how close a workload comes to them. No I/O.

An iteration that performs `flops` operations and must move `moved_bytes` can run no faster than its
operations at the peak arithmetic rate, and no faster than its bytes at the peak memory bandwidth.
The slower of the two is its roofline bound. Small working sets stay in caches between iterations,
so the bandwidth depends on the number of bytes: `MachinePeak.bytes_per_second_at`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchyard.core.comparison import VariantMetrics

__all__ = [
    "ARITHMETIC",
    "CACHE",
    "MEMORY",
    "Attainment",
    "MachinePeak",
    "ProductRate",
    "StreamRate",
    "attainment_of",
    "bytes_per_second",
    "intensity",
]

ARITHMETIC: Final = "arithmetic"
MEMORY: Final = "memory"
CACHE: Final = "cache"
_FASTER_THAN_MEMORY: Final = 1.1
"""A rate this far above that of memory comes from a cache; less is noise."""


@dataclass(frozen=True, kw_only=True)
class ProductRate:
    """The best of several runs of one square matrix product."""

    size: int
    flops_per_second: float


@dataclass(frozen=True, kw_only=True)
class StreamRate:
    """The best of several runs over arrays of one size, bytes read and written."""

    kind: str
    """`copy`: b = a. `triad`: c = a + x * b."""
    working_set_bytes: int
    """Of all arrays together."""
    bytes_per_second: float


@dataclass(frozen=True, kw_only=True)
class MachinePeak:
    """What one device reached at best, in one precision and with so many threads."""

    machine: str
    """As in `results.machine_identity`."""
    device: str
    precision: str
    threads: int
    """0 on devices whose speed does not depend on it."""
    flops_per_second: float
    bytes_per_second: float
    """Of memory: with arrays beyond every cache."""
    products: tuple[ProductRate, ...]
    streams: tuple[StreamRate, ...]
    torch_version: str
    measured: str
    """ISO 8601, UTC."""
    duration_s: float = 0.0
    load: str = ""
    """Load averages when it was measured: other programs make a peak lower than it is."""
    notes: tuple[str, ...] = ()

    @property
    def cache_bytes_per_second(self) -> float | None:
        """The best rate of any size, where a cache is faster than memory."""
        best = max((one.bytes_per_second for one in self.streams), default=0.0)
        return best if best > _FASTER_THAN_MEMORY * self.bytes_per_second else None

    @property
    def ridge(self) -> float:
        """Operations per byte from which on arithmetic is the roof."""
        return self.flops_per_second / self.bytes_per_second

    def bytes_per_second_at(self, moved_bytes: float) -> float:
        """The highest rate that was reached with so many bytes or more.

        Something that moves so many bytes has a working set of at least that size.
        """
        rates = [r.bytes_per_second for r in self.streams if r.working_set_bytes >= moved_bytes]
        return max([self.bytes_per_second, *rates])


@dataclass(frozen=True, kw_only=True)
class Attainment:
    """How near to its roof something came. None: not known of this workload."""

    flops_per_second: float | None
    bytes_per_second: float | None
    intensity: float | None
    """Operations per byte."""
    bound: str
    """Which roof is the lower one: `arithmetic`, `memory` or `cache`."""
    roof_share: float
    """Time at the roof over the time it took: 1 is the most the machine can do."""
    arithmetic_share: float | None
    """Of the highest rate of arithmetic."""
    memory_share: float | None
    """Of the rate of memory or cache that this many bytes can have."""


def bytes_per_second(metrics: VariantMetrics) -> float | None:
    """What must be moved over the time it took, where both are known."""
    if metrics.moved_bytes is None or not metrics.time_ns:
        return None
    return metrics.moved_bytes * 1e9 / metrics.time_ns


def intensity(metrics: VariantMetrics) -> float | None:
    """Operations per byte that must be moved, where both are known."""
    if metrics.flops is None or not metrics.moved_bytes:
        return None
    return metrics.flops / metrics.moved_bytes


def attainment_of(metrics: VariantMetrics, peak: MachinePeak) -> Attainment | None:
    """How near it came; None without a time, or when neither operations nor bytes are known."""
    arithmetic = metrics.flops_per_second
    moving = bytes_per_second(metrics)
    arithmetic_share = None if arithmetic is None else arithmetic / peak.flops_per_second
    memory_share, level = None, MEMORY
    if moving is not None and metrics.moved_bytes is not None:
        rate = peak.bytes_per_second_at(metrics.moved_bytes)
        memory_share = moving / rate
        level = CACHE if rate > _FASTER_THAN_MEMORY * peak.bytes_per_second else MEMORY
    shares = {ARITHMETIC: arithmetic_share, level: memory_share}
    known = {bound: share for bound, share in shares.items() if share is not None}
    if not known:
        return None
    bound = max(known, key=lambda name: known[name])
    return Attainment(
        flops_per_second=arithmetic,
        bytes_per_second=moving,
        intensity=intensity(metrics),
        bound=bound,
        roof_share=known[bound],
        arithmetic_share=arithmetic_share,
        memory_share=memory_share,
    )
