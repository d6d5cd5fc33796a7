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

ARITHMETIC: Final = "arithmetic"
MEMORY: Final = "memory"
CACHE: Final = "cache"
_FASTER_THAN_MEMORY: Final = 1.1
"""Bandwidth above memory bandwidth by this factor comes from a cache; less is noise."""


@dataclass(frozen=True, kw_only=True)
class ProductRate:
    """Best rate over several runs of a square matrix product."""

    size: int
    flops_per_second: float


@dataclass(frozen=True, kw_only=True)
class StreamRate:
    """Best bandwidth over several runs with arrays of one size, reads and writes counted."""

    kind: str
    """`copy`: b = a. `triad`: c = a + x * b."""
    working_set_bytes: int
    """Total size of all arrays."""
    bytes_per_second: float


@dataclass(frozen=True, kw_only=True)
class MachinePeak:
    """Measured peak rates of one device, in one precision and with one number of threads."""

    machine: str
    """As in `results.machine_identity`."""
    device: str
    precision: str
    threads: int
    """0 on devices whose speed does not depend on it."""
    flops_per_second: float
    bytes_per_second: float
    """Memory bandwidth: with arrays larger than every cache."""
    products: tuple[ProductRate, ...]
    streams: tuple[StreamRate, ...]
    torch_version: str
    measured: str
    """ISO 8601, UTC."""
    duration_s: float = 0.0
    load: str = ""
    """Load averages during the measurement: other programs lower the measured peak."""
    notes: tuple[str, ...] = ()

    @property
    def cache_bytes_per_second(self) -> float | None:
        """The best bandwidth of any size; None where no cache is faster than memory."""
        best = max((one.bytes_per_second for one in self.streams), default=0.0)
        return best if best > _FASTER_THAN_MEMORY * self.bytes_per_second else None

    @property
    def ridge(self) -> float:
        """Ridge point: operations per byte above which a workload is compute-bound."""
        return self.flops_per_second / self.bytes_per_second

    def bytes_per_second_at(self, moved_bytes: float) -> float:
        """Return the highest bandwidth measured with this working set or a larger one.

        An iteration that moves `moved_bytes` has a working set of at least that size.
        """
        rates = [r.bytes_per_second for r in self.streams if r.working_set_bytes >= moved_bytes]
        return max([self.bytes_per_second, *rates])


@dataclass(frozen=True, kw_only=True)
class Attainment:
    """Attained share of the roofline bound. None: unknown for this workload."""

    flops_per_second: float | None
    bytes_per_second: float | None
    intensity: float | None
    """Operations per byte."""
    bound: str
    """What limits the workload: `arithmetic`, `memory` or `cache`."""
    roof_share: float
    """Time at the roofline bound divided by the measured time; at most 1."""
    arithmetic_share: float | None
    """Share of the peak arithmetic rate."""
    memory_share: float | None
    """Share of the peak bandwidth of memory or cache for this working set."""


def bytes_per_second(metrics: VariantMetrics) -> float | None:
    """Return the bytes to be moved divided by the time, where both are known."""
    if metrics.moved_bytes is None or not metrics.time_ns:
        return None
    return metrics.moved_bytes * 1e9 / metrics.time_ns


def intensity(metrics: VariantMetrics) -> float | None:
    """Return the arithmetic intensity (operations per byte), where both are known."""
    if metrics.flops is None or not metrics.moved_bytes:
        return None
    return metrics.flops / metrics.moved_bytes


def attainment_of(metrics: VariantMetrics, peak: MachinePeak) -> Attainment | None:
    """Return the attainment; None without a time, or when neither operations nor bytes are known."""
    arithmetic_rate = metrics.flops_per_second
    bandwidth = bytes_per_second(metrics)
    arithmetic_share = None if arithmetic_rate is None else arithmetic_rate / peak.flops_per_second
    memory_share, level = None, MEMORY
    if bandwidth is not None and metrics.moved_bytes is not None:
        peak_bandwidth = peak.bytes_per_second_at(metrics.moved_bytes)
        memory_share = bandwidth / peak_bandwidth
        level = CACHE if peak_bandwidth > _FASTER_THAN_MEMORY * peak.bytes_per_second else MEMORY
    all_shares = {ARITHMETIC: arithmetic_share, level: memory_share}
    shares = {bound: share for bound, share in all_shares.items() if share is not None}
    if not shares:
        return None
    bound = max(shares, key=lambda name: shares[name])
    return Attainment(
        flops_per_second=arithmetic_rate,
        bytes_per_second=bandwidth,
        intensity=intensity(metrics),
        bound=bound,
        roof_share=shares[bound],
        arithmetic_share=arithmetic_share,
        memory_share=memory_share,
    )
