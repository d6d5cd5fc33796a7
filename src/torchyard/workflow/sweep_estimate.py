"""What a sweep will take: time, disk and memory, as ranges, each with where it comes from.

What kept runs on this machine tell comes first, then what a calibration tells, and where neither says
anything only the bound that the budget sets. Nothing here is exact, and nothing pretends to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.study import Budget
from torchyard.core.sweep import Cell, SweepPlan

__all__ = [
    "CellEstimate",
    "EstimateSource",
    "Known",
    "Range",
    "SweepEstimate",
    "estimate_sweep",
    "measuring_s",
]

EstimateSource = Literal["history", "calibration", "budget"]

FIRST_LAUNCHES: Final = 8
"""Into how many launches `measure.pacing` cuts the time before it knows better."""
GUESSED_CELL_BYTES: Final = 300_000
"""Of one candidate measured for a minute, where no run tells; see `_guessed_bytes`."""
GUESS_SPREAD: Final = 4.0
COPIES: Final = 2
"""What cells hold is copied into the joined run, and both are kept."""


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
    memory_bytes: int | None = None
    """Of one worker where a calibration saw it, else of tensors in one iteration."""
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
    memory_bytes: int | None = None
    unsupported: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepEstimate:
    """The whole shard."""

    cells: tuple[CellEstimate, ...]
    at_a_time: int | None = 1
    """Cells side by side; None when a cluster decides."""
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

    @property
    def memory(self) -> CellEstimate | None:
        """The cell that needs most, among those of which it is known."""
        known = [cell for cell in self.cells if cell.memory_bytes is not None]
        return max(known, key=lambda cell: cell.memory_bytes or 0, default=None)

    def count(self, source: EstimateSource) -> int:
        """How many cells are estimated from there."""
        return sum(cell.source == source for cell in self.cells)

    def expected_s(self) -> dict[str, float]:
        """The middle of each cell's range, for whoever shows what is left."""
        return {cell.cell: (cell.time_s.low + cell.time_s.high) / 2 for cell in self.cells}

    def too_large(self) -> list[CellEstimate]:
        """Cells whose worker needs more than it may use, or than there is."""
        bounds = [bound for bound in (self.machine_bytes, self.limit_bytes) if bound is not None]
        return [
            cell
            for cell in self.cells
            if cell.memory_bytes is not None and bounds and cell.memory_bytes > min(bounds)
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
        _cell(cell, [source[cell.id] for source in known if cell.id in source])
        for cell in plan.cells
    ]
    size_bytes, from_history = _size(plan, known)
    return SweepEstimate(
        cells=tuple(cells),
        at_a_time=1 if local else _at_most(plan),
        size_bytes=size_bytes,
        size_source="history" if from_history else "guess",
        free_bytes=here.free_bytes,
        machine_bytes=here.machine_bytes if local else None,
        limit_bytes=plan.cells[0].study.settings.memory_limit_bytes,
    )


def measuring_s(budget: Budget) -> Range:
    """How long a cell measures: from the first look that may decide to the whole time."""
    if budget.precision_goal <= 0 or budget.max_launches == 1:
        return Range(low=budget.time_s, high=budget.time_s)
    share_s = max(1.0, budget.time_s / min(budget.max_launches, FIRST_LAUNCHES))
    return Range(low=min(budget.time_s, budget.min_launches * share_s), high=budget.time_s)


def _cell(cell: Cell, known: Sequence[Known]) -> CellEstimate:
    timed = next((one for one in known if one.time_s is not None), None)
    memory = next((one.memory_bytes for one in known if one.memory_bytes is not None), None)
    time_s = timed.time_s if timed is not None else None
    return CellEstimate(
        cell=cell.id,
        label=cell.label,
        source="budget" if timed is None else timed.source,
        time_s=time_s if time_s is not None else measuring_s(cell.study.budget),
        memory_bytes=memory,
        unsupported=next((one.unsupported for one in known if one.unsupported), ""),
    )


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
    spread = 1.5 if len(found) == len(plan.cells) else GUESS_SPREAD / 2
    return Range(low=total / spread, high=total * spread), True


def _guessed_bytes(cell: Cell) -> Range:
    minutes = cell.study.budget.time_s / 60.0
    size = GUESSED_CELL_BYTES * max(0.2, minutes) * len(cell.study.candidates) * COPIES
    return Range(low=size / GUESS_SPREAD, high=size * GUESS_SPREAD)
