"""A sweep: suites times modes, precisions and candidates, as cells that run one by one. No I/O.

A cell is one workload in one precision with all its candidates: the smallest thing that is measured,
repeated or left out as a whole. Its study is an ordinary study, its result an ordinary run folder.
Executors run cells and know nothing else of a sweep.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from torchyard.core.study import Study
from torchyard.core.variant import Precision, Scalar

__all__ = [
    "EXECUTORS",
    "SWEEP_FORMAT",
    "Attempt",
    "Cell",
    "CellBatch",
    "CellState",
    "CellStatus",
    "ExecutorChoice",
    "ExecutorName",
    "Outcome",
    "SweepLimits",
    "SweepPlan",
    "SweepView",
]

SWEEP_FORMAT: Final = 1
"""Raised when an older Torchyard could no longer read a sweep's folder."""

ExecutorName = Literal["local", "slurm"]
EXECUTORS: Final[tuple[ExecutorName, ...]] = get_args(ExecutorName)

CellState = Literal["waiting", "queued", "running", "done", "failed"]
"""`done`: there is a finished run, whose rows may say failed. `failed`: no run could be finished."""

Outcome = Literal[
    "finished",
    "interrupted",
    "died",
    "time-limit",
    "memory-limit",
    "pre-empted",
    "node-failed",
    "cancelled",
    "refused",
]
"""How an attempt ended. `interrupted`, `pre-empted` and `cancelled` are nobody's fault: they are not
counted as tries. `refused`: the executor would not run it at all."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One workload in one precision, with all its candidates."""

    id: str
    """`0007-timm-resnet50-training-float32`: sorts in the order of the plan, safe as a file name."""
    study: Study
    """With exactly one workload."""

    @property
    def precision(self) -> Precision:
        """Of the baseline."""
        return self.study.baseline.precision

    @property
    def label(self) -> str:
        """What tables call it."""
        text = self.study.workloads[0].label
        return text if self.precision == "float32" else f"{text} {self.precision}"


@dataclass(frozen=True, kw_only=True)
class CellBatch:
    """The batch size of a cell that was to be searched for."""

    over: bool = False
    """Whether the search is; a size that was found is kept for all attempts."""
    batch_size: int | None = None
    """None: the workload keeps its own."""
    text: str = ""
    """What was tried last, or what was found."""


@dataclass(frozen=True, kw_only=True)
class SweepLimits:
    """What one cell may use, and how often it is tried."""

    cell_s: float | None = None
    """Wall time of one attempt; None: no limit beside those of the study."""
    tries: int = 2
    """Attempts at most that died, hung or ended with a failure that may pass."""


@dataclass(frozen=True, kw_only=True)
class ExecutorChoice:
    """Where cells run, and what that executor is told."""

    name: ExecutorName = "local"
    options: tuple[tuple[str, Scalar], ...] = ()
    """`at-most`; and of Slurm: `partition`, `account`, `qos`, `gpus`, `exclusive`, `time`, ..."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """Everything a sweep is asked to do; written once, and never changed."""

    format: int = SWEEP_FORMAT
    name: str
    cells: tuple[Cell, ...]
    """Those of this shard."""
    shard: tuple[int, int] = (1, 1)
    """Which part of how many."""
    limits: SweepLimits = field(default_factory=SweepLimits)
    executor: ExecutorChoice = field(default_factory=ExecutorChoice)
    null: bool = False
    """Every candidate is the baseline again: what is called different is a false alarm."""
    largest_batches: bool = False
    """Each cell whose workload names no batch size searches for the largest that fits, first."""
    command: tuple[str, ...] = ()
    revision: str = ""
    notes: tuple[str, ...] = ()
    created: str = ""
    torchyard: str = ""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a cell."""

    number: int
    """From 1 up."""
    began: str = ""
    place: str = ""
    """The host, and on a cluster the job: `node3, job 1234_7`."""
    ended: str = ""
    outcome: Outcome | None = None
    """None while it runs, or when whatever ran it died without a word."""
    why: str = ""
    log: str = ""
    """Of the process that ran it, relative to the sweep's folder."""

    @property
    def counts(self) -> bool:
        """Whether it was a try: it ended, and not because somebody else ended it."""
        return self.outcome not in (None, "interrupted", "pre-empted", "cancelled")


@dataclass(frozen=True, kw_only=True)
class CellStatus:
    """Where a cell stands."""

    cell: Cell
    state: CellState
    attempts: tuple[Attempt, ...] = ()
    run: str = ""
    """The run folder of the last attempt, relative to the sweep's folder; empty before the first."""
    text: str = ""
    """What it does now, or why it failed."""
    fraction: float | None = None


@dataclass(frozen=True, kw_only=True)
class SweepView:
    """A sweep as it stands now, for whoever watches."""

    plan: SweepPlan
    statuses: tuple[CellStatus, ...]
    """In the order of the plan."""
    elapsed_s: float = 0.0
    """Since this driver began."""
    remaining_s: float | None = None
    """What is still to come at the pace so far; None before a cell has ended."""

    def count(self, *states: CellState) -> int:
        """How many cells are in one of these states."""
        return sum(status.state in states for status in self.statuses)
