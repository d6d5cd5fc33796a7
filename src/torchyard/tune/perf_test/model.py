"""Results of `torchyard perf-test`: a matrix product and an inference, two settings. No I/O."""

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
    on_device: bool = False
    """A kernel or a copy; its time is also in the row of the operator that began it."""
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
    def operators(self) -> tuple[OperatorRow, ...]:
        """What the CPU began."""
        return tuple(row for row in self.rows if not row.on_device)

    @property
    def kernels(self) -> tuple[OperatorRow, ...]:
        """What ran on the GPU, the costliest first."""
        return tuple(row for row in self.rows if row.on_device)

    @property
    def total_ns(self) -> float:
        """On the CPU, each row counted without what is inside it."""
        return sum(row.self_cost for row in self.operators)

    @property
    def device_ns(self) -> float:
        """On the GPU."""
        return sum(row.self_device_cost for row in self.kernels)


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
