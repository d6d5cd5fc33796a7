"""A study: variants, workloads, the precision wanted and the time allowed. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torchyard.core.variant import Variant
from torchyard.core.workload import Workload

__all__ = ["Budget", "MeasureSettings", "Reseat", "Study"]

Reseat = Literal["auto", "pages", "heap", "off"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a comparison may stop."""

    time_s: float = 60.0
    """Measuring time: wall time after the first launch is ready."""
    precision_goal: float = 0.01
    """Half-width of the interval that is wanted; 0 means use the whole time."""
    margin: float = 0.01
    """Differences proven smaller than this are called the same."""
    alpha: float = 0.05
    min_launches: int = 3
    max_launches: int = 60
    launch_s: float | None = None
    """How long a launch measures; None leaves it to the pace, which weighs starting against noise."""


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """How blocks are taken and what a worker may use."""

    block_s: float = 0.1
    threads: int | None = None
    seed: int = 1337
    reseat: Reseat = "auto"
    paired_layout: bool = True
    """Start both sides of a launch with one layout, drawn anew for each launch."""
    flush_l2: bool = False
    check_accuracy: bool = True
    memory_limit_bytes: int | None = None
    start_limit_s: float = 120.0
    """For the import of torch and the handshake."""
    step_limit_s: float = 600.0
    """For building, checking, compiling and warming up."""
    block_limit_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything a run is asked to do."""

    name: str
    baseline: Variant
    candidates: tuple[Variant, ...]
    workloads: tuple[Workload, ...]
    budget: Budget = field(default_factory=Budget)
    settings: MeasureSettings = field(default_factory=MeasureSettings)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Baseline first."""
        return (self.baseline, *self.candidates)
