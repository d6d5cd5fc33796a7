"""A sweep: its plan, cells, attempts and states, and the summary over all cells.

A cell is one workload in one precision with all its candidates: the smallest unit that is measured,
repeated or omitted. Its study is an ordinary study, its result an ordinary run folder. Executors
run cells and know nothing else of a sweep.

In a summary, a row is one workload in one precision with one candidate, with or without a number. A
group is all rows of a suite, mode and precision with one candidate. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from torchyard.core.comparison import Interval, Scope, Verdict
from torchyard.core.study import Mode, Precision, Scalar, Study

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


End = Literal[
    "passed",
    "wrong",
    "non-deterministic",
    "random",
    "unchecked",
    "raised",
    "crashed",
    "hung",
    "out-of-memory",
    "unsupported",
    "not-finished",
]
"""How a row ended. `passed`: results that were found right, and a number. `non-deterministic`: one side
gives other results when it is run again. `random`: it draws random numbers that backends draw
differently. `unchecked`: the check was wanted and could not be made. `unsupported`: the workload or the candidate cannot be made in this
target. `not-finished`: it was not run, its run was cut off, or nothing it measured was usable."""
ENDS: Final[tuple[End, ...]] = get_args(End)

_DOUBT: Final = 0.01
"""A machine that keeps its promise is accused in at most one sweep of a hundred by each test."""


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One workload in one precision with one candidate."""

    cell: str = ""
    """Of the plan; empty for a comparison that no cell asked for."""
    suite: str
    workload: str
    """Its label."""
    mode: Mode
    precision: str
    baseline: str
    candidate: str
    end: End
    speedup: float | None = None
    interval: Interval | None = None
    selected_interval: Interval | None = None
    """Of a row among the best or worst: wider, because it was selected for being extreme."""
    verdict: Verdict
    """The state that is shown, after the correction for all comparisons of the sweep."""
    verdict_alone: Verdict
    """Before it."""
    p_value: float | None = None
    p_adjusted: float | None = None
    """Benjamini-Hochberg over the sweep's comparisons that say how fast something is, whatever
    their suite, precision or candidate; None of those that are wrong or have no number."""
    launches: int = 0
    baseline_ns: float | None = None
    candidate_ns: float | None = None
    compile_s: float | None = None
    """With cold caches."""
    memory_ratio: float | None = None
    """Candidate over baseline; None unless both were measured the same way."""
    break_even: float | None = None
    """Iterations after which the time saved has paid for compiling; None where nothing is saved."""
    untrusted: tuple[str, ...] = ()
    """Why its numbers must not be trusted. Its verdict is then `untrusted`, and no mean holds it."""
    reason: str = ""
    """Why it did not pass, or what a reader of its number must know."""
    log: str = ""
    log_tail: str = ""
    tries: int = 0
    run: str = ""
    """Id of the run that it stands in."""

    @property
    def has_number(self) -> bool:
        """Whether there is a speed, right or wrong."""
        return self.speedup is not None

    @property
    def trusted(self) -> bool:
        """Whether its numbers may be used."""
        return not self.untrusted

    @property
    def demoted(self) -> bool:
        """Whether its claim did not survive the correction."""
        return self.verdict is not self.verdict_alone


@dataclass(frozen=True, kw_only=True)
class MeanSpeedup:
    """A geometric mean of speedups with its interval, for these workloads and no others."""

    speedup: float
    interval: Interval
    workloads: int
    scope: Scope = "launches"


@dataclass(frozen=True, kw_only=True)
class GroupKey:
    """What the rows of a group have in common; empty means all of them."""

    suite: str = ""
    mode: str = ""
    precision: str = ""
    baseline: str
    candidate: str


@dataclass(frozen=True, kw_only=True)
class SweepGroup:
    """What one suite, mode and precision says of one candidate."""

    key: GroupKey
    workloads: int
    ends: tuple[tuple[End, int], ...]
    """How many rows ended how, those that occur."""
    verdicts: tuple[tuple[Verdict, int], ...]
    common: MeanSpeedup | None
    """Over the workloads that every candidate of the group passed."""
    own: MeanSpeedup | None
    """Over all that this candidate passed: not to be compared between candidates."""
    not_wrong: MeanSpeedup | None = None
    """Over those too that could not be shown to be right, since two runs of the baseline differ; None
    where there are none."""
    compiled: int = 0
    """How many rows have a compile time."""
    compile_median_s: float | None = None
    compile_sum_s: float | None = None
    memory_ratio: float | None = None
    """Geometric mean of candidate over baseline."""
    memory_rows: int = 0
    break_even_median: float | None = None
    break_even_rows: int = 0
    untrusted: int = 0
    """Rows that no mean holds because their numbers must not be trusted."""

    @property
    def passed(self) -> int:
        """Rows with right results and a number."""
        return dict(self.ends).get("passed", 0)

    @property
    def pass_rate(self) -> float:
        """Of all rows, those included that were never run."""
        return self.passed / self.workloads if self.workloads else 0.0


@dataclass(frozen=True, kw_only=True)
class FalseAlarms:
    """Of a sweep that compares everything with itself: how often that was called a difference."""

    comparisons: int
    """Those that have a test."""
    alpha: float
    """The rate that was promised."""
    significant: int
    """Their interval does not hold 1."""
    called: int
    """Faster or slower, each on its own: significant, and not within the margin."""
    called_adjusted: int
    """Faster or slower after the correction for all of them."""
    rate: Interval
    """Wilson's interval of the share that is significant."""
    chance: float
    """That a machine which keeps to alpha shows as many significant ones, or more."""
    bins: tuple[int, ...]
    """How many p-values lie in each tenth from 0 to 1."""
    excess: float
    """By how much the share of small p-values exceeds the even one, at the worst place."""
    excess_chance: float
    """That even p-values show such an excess (Kolmogorov and Smirnov, one-sided)."""
    shared_baselines: bool = False
    """Several candidates were compared with one baseline: not independent of each other."""

    @property
    def within(self) -> bool:
        """Whether nothing speaks against the promised rate."""
        return self.chance > _DOUBT and self.excess_chance > _DOUBT


@dataclass(frozen=True, kw_only=True)
class SummarizedRun:
    """A run that rows came from."""

    id: str
    precision: str
    name: str = ""
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """The whole sweep."""

    name: str
    created: str = ""
    torchyard: str = ""
    revision: str = ""
    shard: tuple[int, int] = (1, 1)
    null: bool = False
    checked: bool = True
    """False when results were not to be checked: then `passed` says only that there is a number."""
    alpha: float
    margin: float
    cells: int
    cells_finished: int
    """With a finished run, or given up."""
    rows: tuple[SweepRow, ...]
    groups: tuple[SweepGroup, ...]
    """In the order of the plan, the candidates of one suite, mode and precision side by side."""
    totals: tuple[SweepGroup, ...] = ()
    """One per candidate, over everything; empty when there is one group each."""
    best: tuple[SweepRow, ...] = ()
    worst: tuple[SweepRow, ...] = ()
    false_alarms: FalseAlarms | None = None
    """Of a null sweep."""
    runs: tuple[SummarizedRun, ...] = ()
    doubts: tuple[str, ...] = ()
    """Doubts about the sweep as a whole, the gravest first."""

    @property
    def not_passed(self) -> tuple[SweepRow, ...]:
        """Every row without a right result and a number."""
        return tuple(row for row in self.rows if row.end != "passed")

    @property
    def candidates(self) -> tuple[str, ...]:
        """In the order of the plan."""
        return tuple(dict.fromkeys(row.candidate for row in self.rows))
