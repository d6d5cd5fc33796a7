"""The performance test: a matrix product and an inference, under two settings side by side. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from torchyard.core.comparison import Comparison
from torchyard.core.roofline import MachinePeak

__all__ = ["OperatorRow", "OperatorTable", "PerfTest"]


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """An operator or kernel, over all iterations."""

    name: str
    calls: int
    self_cost: float
    """On the CPU, in ns, without the operators inside it."""
    total_cost: float
    self_device_cost: float = 0.0
    """On the GPU, in ns."""
    total_device_cost: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """Where the time of one variant goes."""

    workload: str
    variant: str
    iterations: int
    rows: tuple[OperatorRow, ...]
    """Costliest first."""
    why_not: str = ""
    """Why there are no rows."""

    @property
    def total_ns(self) -> float:
        """Of all rows, each counted without what is inside it."""
        return sum(row.self_cost + row.self_device_cost for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class PerfTest:
    """What a performance test found."""

    comparisons: tuple[Comparison, ...]
    """The product first, then the inference."""
    tables: tuple[OperatorTable, ...]
    peak: MachinePeak | None
    peak_why_not: str = ""
    run: str = ""
    """The run folder."""
    settings: tuple[tuple[str, str], ...] = ()
    """Name of a variant and what it sets, in words."""
