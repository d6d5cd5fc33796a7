"""Results of `torchyard perf-test`: a matrix product and an inference, two settings. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from torchyard.core.comparison import Comparison
from torchyard.core.roofline import MachinePeak


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """An operator or kernel, over all iterations."""

    name: str
    calls: int
    on_device: bool = False
    """Whether it is a kernel or copy; its time is also in the row of the operator that launched it."""
    self_cost: float
    """CPU time in ns, without nested operators."""
    total_cost: float
    self_device_cost: float = 0.0
    """GPU time in ns."""
    total_device_cost: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """Time of one variant by operator."""

    workload: str
    variant: str
    iterations: int
    rows: tuple[OperatorRow, ...]
    """Most expensive first."""
    why_not: str = ""
    """Why there are no rows."""

    @property
    def operators(self) -> tuple[OperatorRow, ...]:
        """Rows of operators on the CPU."""
        return tuple(row for row in self.rows if not row.on_device)

    @property
    def kernels(self) -> tuple[OperatorRow, ...]:
        """Rows of kernels on the GPU, most expensive first."""
        return tuple(row for row in self.rows if row.on_device)

    @property
    def total_ns(self) -> float:
        """Total self CPU time."""
        return sum(row.self_cost for row in self.operators)

    @property
    def device_ns(self) -> float:
        """Total GPU time."""
        return sum(row.self_device_cost for row in self.kernels)


@dataclass(frozen=True, kw_only=True)
class PerfTest:
    """Result of a performance test."""

    comparisons: tuple[Comparison, ...]
    """The product first, then the inference."""
    tables: tuple[OperatorTable, ...]
    peak: MachinePeak | None
    peak_why_not: str = ""
    run: str = ""
    """The run folder."""
    settings: tuple[tuple[str, str], ...] = ()
    """Name of each variant and a description of its settings."""
