"""What a sweep will take: time, disk and memory, as ranges, each with where it comes from.

What kept runs on this machine tell comes first, then what a calibration tells, and where neither says
anything only the bound that the budget sets. Nothing here is exact, and nothing pretends to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.study import Budget
from torchyard.core.sweep import Cell, SweepLimits, SweepPlan

__all__ = [
    "CellEstimate",
    "EstimateSource",
    "Known",
    "MemoryKind",
    "Range",
    "Surroundings",
    "SweepEstimate",
    "estimate_sweep",
    "measuring_s",
]

EstimateSource = Literal["history", "calibration", "budget"]
MemoryKind = Literal["worker_bytes", "tensor_bytes", "device_bytes"]

FIRST_LAUNCHES: Final = 8
"""Into how many launches `measure.pacing` cuts the time before it knows better."""
OVERTIME: Final = 2.0
"""A session that has not made its first launches may take twice its time (`measure.pacing`)."""
BYTES_PER_S: Final = (3_000.0, 20_000.0)
"""What a candidate's blocks need on disk per second of measuring, where no run tells. Four runs on
a slow machine needed 4300 to 6000; blocks of 0.1 s, at 1400 to 1800 bytes, back to back set the end."""
BYTES_PER_CELL: Final = 20_000.0
"""Facts, launches and logs."""
COPIES: Final = 2
"""What cells hold is copied into the joined run, and both are kept."""
SIZE_SPREAD: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Range:
    """Between these."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(low=self.low + other.low, high=self.high + other.high)

    def times(self, factor: float) -> Range:
        """Both ends."""
        return Range(low=self.low * factor, high=self.high * factor)


NOTHING: Final = Range(low=0.0, high=0.0)


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a cell before it runs; None where nothing is."""

    source: EstimateSource
    time_s: Range | None = None
    size_bytes: float | None = None
    worker_bytes: int | None = None
    """Most memory of a process that built it and ran one iteration."""
    tensor_bytes: int | None = None
    """Of tensors alive in one iteration: less than its process needs."""
    device_bytes: int | None = None
    """The same on a GPU."""
    compiling_unknown: bool = False
    """Whether the time is without compiling."""
    unsupported: str = ""
    """Why the workload cannot be built or run, as a calibration found."""


@dataclass(frozen=True, kw_only=True)
class CellEstimate:
    """One cell: what it should take, and how that is known."""

    cell: str
    label: str
    source: EstimateSource
    time_s: Range
    """With source `budget` only measuring: starting and compiling are not known."""
    worker_bytes: int | None = None
    tensor_bytes: int | None = None
    device_bytes: int | None = None
    compiling_unknown: bool = False
    unsupported: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepEstimate:
    """The whole shard."""

    cells: tuple[CellEstimate, ...]
    at_a_time: int | None = 1
    """Cells that are timed side by side; None when a cluster decides."""
    together: int = 1
    """Cells under way on this machine, of which one is timed."""
    size_bytes: Range = NOTHING
    size_source: Literal["history", "guess"] = "guess"
    free_bytes: int | None = None
    machine_bytes: int | None = None
    """Memory of this machine, or of its control group; None when cells run elsewhere."""
    limit_bytes: int | None = None
    """What one worker may use."""

    @property
    def time_s(self) -> Range:
        """One cell after the other, divided by how many run side by side."""
        total = sum((cell.time_s for cell in self.cells), start=NOTHING)
        return total.times(1.0 / (self.at_a_time or 1))

    def largest(self, kind: MemoryKind) -> tuple[int, CellEstimate] | None:
        """The cell that needs most of that memory, among those of which it is known."""
        known = [(getattr(cell, kind), cell) for cell in self.cells if getattr(cell, kind)]
        return max(known, key=lambda item: int(item[0]), default=None)

    def count(self, source: EstimateSource) -> int:
        """How many cells are estimated from there."""
        return sum(cell.source == source for cell in self.cells)

    def expected_s(self) -> dict[str, float]:
        """The middle of each cell's range, for whoever shows what is left."""
        return {cell.cell: (cell.time_s.low + cell.time_s.high) / 2 for cell in self.cells}

    def too_large(self) -> list[CellEstimate]:
        """Cells whose worker needs more than it may use, or than there is."""
        bounds = [bound for bound in (self.machine_bytes, self.limit_bytes) if bound is not None]
        if not bounds:
            return []
        return [
            cell
            for cell in self.cells
            if max(cell.worker_bytes or 0, cell.tensor_bytes or 0) > min(bounds)
        ]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the machine says: read by the caller, so that an estimate is arithmetic."""

    free_bytes: int | None = None
    machine_bytes: int | None = None


def estimate_sweep(
    plan: SweepPlan,
    known: Sequence[Mapping[str, Known]] = (),
    *,
    surroundings: Surroundings | None = None,
) -> SweepEstimate:
    """The estimate of a plan; `known` by cell id, the best source first."""
    here = surroundings or Surroundings()
    local = plan.executor.name == "local"
    cells = [
        _cell(cell, [source[cell.id] for source in known if cell.id in source], plan.limits)
        for cell in plan.cells
    ]
    size_bytes, from_history = _size(plan, known)
    return SweepEstimate(
        cells=tuple(cells),
        at_a_time=1 if local else _at_most(plan),
        together=(_at_most(plan) or 1) if local else 1,
        size_bytes=size_bytes,
        size_source="history" if from_history else "guess",
        free_bytes=here.free_bytes,
        machine_bytes=here.machine_bytes if local else None,
        limit_bytes=_most(cell.study.settings.memory_limit_bytes for cell in plan.cells),
    )


def measuring_s(budget: Budget, *, start_s: float | None = None) -> Range:
    """How long a cell measures: from the first look that may decide to the whole time.

    `start_s` is what it takes to start a launch, where that is known: the first launches are made
    however long that takes, up to twice the time.
    """
    least = max(1, min(budget.min_launches, budget.max_launches))
    bound_s = budget.time_s * OVERTIME
    share_s = max(1.0, budget.time_s / min(budget.max_launches, FIRST_LAUNCHES))
    early_s = min(budget.time_s, least * share_s)
    if budget.precision_goal <= 0 or budget.max_launches == 1:
        early_s = budget.time_s
    if start_s is None:
        return Range(low=early_s, high=bound_s)
    started_s = (least - 1) * start_s
    return Range(
        low=max(early_s, min(started_s, max(bound_s, start_s))),
        high=min(bound_s, max(budget.time_s, started_s + least * share_s)) + start_s,
    )


def _cell(cell: Cell, known: Sequence[Known], limits: SweepLimits) -> CellEstimate:
    timed = next((one for one in known if one.time_s is not None), None)
    time_s = timed.time_s if timed is not None else None
    if time_s is None:
        time_s = measuring_s(cell.study.budget)
    if limits.cell_s is not None:
        most_s = limits.cell_s * limits.tries
        time_s = Range(low=min(time_s.low, most_s), high=min(time_s.high, most_s))
    return CellEstimate(
        cell=cell.id,
        label=cell.label,
        source="budget" if timed is None else timed.source,
        time_s=time_s,
        worker_bytes=_most(one.worker_bytes for one in known),
        tensor_bytes=_most(one.tensor_bytes for one in known),
        device_bytes=_most(one.device_bytes for one in known),
        compiling_unknown=timed is None or timed.compiling_unknown,
        unsupported=next((one.unsupported for one in known if one.unsupported), ""),
    )


def _most(amounts: Iterable[int | None]) -> int | None:
    return max((amount for amount in amounts if amount is not None), default=None)


def _at_most(plan: SweepPlan) -> int | None:
    number = str(dict(plan.executor.options).get("at-most", ""))
    return int(number) if number.isdecimal() else None


def _size(plan: SweepPlan, known: Sequence[Mapping[str, Known]]) -> tuple[Range, bool]:
    """Of all cells and of the runs they are joined into; a cell of unknown size is as the others."""
    found = {
        cell: one.size_bytes
        for source in reversed(known)
        for cell, one in source.items()
        if one.size_bytes is not None
    }
    if not found:
        return sum((_guessed_bytes(cell) for cell in plan.cells), start=NOTHING), False
    usual = sum(found.values()) / len(found)
    total = sum(found.get(cell.id, usual) for cell in plan.cells) * COPIES
    return Range(low=total / SIZE_SPREAD, high=total * SIZE_SPREAD), True


def _guessed_bytes(cell: Cell) -> Range:
    time_s, count = measuring_s(cell.study.budget), len(cell.study.candidates)
    low, high = (
        (BYTES_PER_CELL + rate * duration_s * count) * COPIES
        for rate, duration_s in zip(BYTES_PER_S, (time_s.low, time_s.high), strict=True)
    )
    return Range(low=low, high=high)
