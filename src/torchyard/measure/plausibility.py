"""Times that no honest computation can have. Pure functions over metrics.

A candidate that returns remembered results does no work. Its rate of arithmetic is then beyond what
the device can do, or its call takes less time than torch needs to start a single operator.
"""

from __future__ import annotations

from typing import Final

from torchyard.core.comparison import VariantMetrics
from torchyard.core.roofline import MachinePeak, attainment_of
from torchyard.core.units import format_duration

__all__ = ["implausible_times"]

BEYOND_PEAK: Final = 3.0
"""An algorithm may need fewer operations than eager code's: 2.25 times fewer in a Winograd convolution."""
CPU_FLOPS_PER_CORE: Final = {"float32": 6e9 * 128, "other": 6e9 * 4096}
"""More than any core can do: 6 GHz, four 512-bit units; matrix tiles in short formats."""
GPU_FLOPS: Final = {"float32": 1e16, "other": 1e17}
"""More than any single GPU can do."""
DISPATCH_NS: Final = 1000.0
"""Python and torch need longer to call a single operator."""
DISPATCH_RATIO: Final = 20.0


def implausible_times(
    baseline: VariantMetrics,
    candidate: VariantMetrics,
    *,
    device: str,
    precision: str,
    cores: int,
    peak: MachinePeak | None = None,
) -> list[str]:
    """Why the candidate's time cannot be that of the work; empty when it can."""
    found = []
    time_ns, rate = candidate.time_ns, candidate.flops_per_second
    kind = precision if precision == "float32" else "other"
    limit = cores * CPU_FLOPS_PER_CORE[kind] if device == "cpu" else GPU_FLOPS[kind]
    if rate is not None and rate > limit:
        found.append(
            f"faster than the hardware allows: {rate / 1e12:.3g} TFLOP/s, "
            f"and {limit / 1e12:.3g} is more than this device can do"
        )
    elif peak is not None and (share := _share_of_peak(candidate, peak)) > BEYOND_PEAK:
        found.append(f"faster than the hardware allows: {share:.3g} times the measured peak")
    slowest = baseline.time_ns
    if time_ns and slowest and time_ns < DISPATCH_NS and slowest > DISPATCH_RATIO * time_ns:
        found.append(
            f"a call takes {format_duration(time_ns)}, less than starting one operator does, "
            f"and the baseline's {format_duration(slowest)}: it cannot have computed anything"
        )
    return found


def _share_of_peak(metrics: VariantMetrics, peak: MachinePeak) -> float:
    attained = attainment_of(metrics, peak)
    return 0.0 if attained is None else attained.roof_share
