"""A sweep: its plan, cells, attempts and states, and the summary over all cells.

A cell is one workload in one precision with all its candidates: the smallest unit that is measured,
repeated or omitted. Its study is an ordinary study, its result an ordinary run folder. Executors
run cells and do not depend on the rest of a sweep.

In a summary, a row is one workload in one precision with one candidate, with or without a speedup.
A group is all rows of a suite, mode and precision with one candidate. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from torchyard.core.comparison import Interval, Scope, Verdict
from torchyard.core.study import Mode, Precision, Scalar, Study

SWEEP_FORMAT: Final = 1
"""Incremented when an older Torchyard can no longer read a sweep's folder."""

ExecutorName = Literal["local", "slurm"]
EXECUTORS: Final[tuple[ExecutorName, ...]] = get_args(ExecutorName)

CellState = Literal["waiting", "queued", "running", "paused", "done", "failed"]
"""`paused`: it has provisional results and waits for its next launch. `done`: the cell has a finished run, whose rows may have failed. `failed`: no attempt finished."""

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
"""How an attempt ended. `interrupted`, `pre-empted` and `cancelled` do not count as tries.
`refused`: the executor did not accept the cell."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One workload in one precision, with all its candidates."""

    id: str
    """For example `0007-timm-resnet50-training-float32`: sorts in plan order, safe as a file name."""
    study: Study
    """With exactly one workload."""

    @property
    def precision(self) -> Precision:
        """The precision of the baseline."""
        return self.study.baseline.precision

    @property
    def label(self) -> str:
        """The name of the cell in tables."""
        text = self.study.workloads[0].label
        return text if self.precision == "float32" else f"{text} {self.precision}"


@dataclass(frozen=True, kw_only=True)
class CellBatch:
    """Result or progress of the batch size search of a cell."""

    over: bool = False
    """Whether the search has finished; its result is used for all attempts."""
    batch_size: int | None = None
    """None: the workload keeps its default."""
    text: str = ""
    """The last batch size tried, or the result."""


@dataclass(frozen=True, kw_only=True)
class SweepLimits:
    """Time limit and number of tries of a cell."""

    cell_s: float | None = None
    """Wall time of one attempt; None: only the limits of the study apply."""
    tries: int = 2
    """Maximum number of attempts that crash, hang or end with a transient failure."""
    budget_s: float | None = None
    """Wall time of the whole sweep; None: until every cell is decided or failed."""


LOCAL_OPTIONS: Final = ("at-most", "reserve-cores")
"""Options of the local executor."""


@dataclass(frozen=True, kw_only=True)
class ExecutorChoice:
    """The executor of a sweep and its options."""

    name: ExecutorName = "local"
    options: tuple[tuple[str, Scalar], ...] = ()
    """`at-most`, `reserve-cores`; and of Slurm: `partition`, `account`, `qos`, `gpus`, `exclusive`, `time`, ..."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """The complete definition of a sweep; written once and never changed."""

    format: int = SWEEP_FORMAT
    name: str
    cells: tuple[Cell, ...]
    """The cells of this shard."""
    shard: tuple[int, int] = (1, 1)
    """Shard number and number of shards."""
    limits: SweepLimits = field(default_factory=SweepLimits)
    executor: ExecutorChoice = field(default_factory=ExecutorChoice)
    null: bool = False
    """A/A sweep: every candidate is the baseline again, so any difference is a false alarm."""
    largest_batches: bool = False
    """Each cell whose workload names no batch size first searches for the largest that fits."""
    command: tuple[str, ...] = ()
    revision: str = ""
    notes: tuple[str, ...] = ()
    created: str = ""
    torchyard: str = ""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a cell."""

    number: int
    """Starts at 1."""
    began: str = ""
    place: str = ""
    """The host, with the job on a cluster: `node3, job 1234_7`."""
    ended: str = ""
    outcome: Outcome | None = None
    """None while it runs, or if its process ended without recording an outcome."""
    why: str = ""
    log: str = ""
    """Log of the process that ran it, relative to the sweep's folder."""
    idle: bool = False
    """Whether no launch was in progress when it was interrupted or cancelled."""

    @property
    def counts(self) -> bool:
        """Whether it counts as a try: it ended, and was not interrupted, pre-empted or cancelled."""
        return self.outcome not in (None, "interrupted", "pre-empted", "cancelled")


@dataclass(frozen=True, kw_only=True)
class CellStatus:
    """The state of a cell."""

    cell: Cell
    state: CellState
    attempts: tuple[Attempt, ...] = ()
    run: str = ""
    """Run folder of the last attempt, relative to the sweep's folder; empty before the first."""
    text: str = ""
    """What the cell is doing, or why it failed."""
    fraction: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the cell is still to be finished: neither done nor failed."""
        return self.state not in ("done", "failed")


@dataclass(frozen=True, kw_only=True)
class SweepView:
    """A snapshot of a running sweep, for progress callbacks."""

    plan: SweepPlan
    statuses: tuple[CellStatus, ...]
    """In the order of the plan."""
    elapsed_s: float = 0.0
    """Since this driver started."""
    remaining_s: float | None = None
    """Estimated remaining time; None before a cell has ended."""

    def count(self, *states: CellState) -> int:
        """Return how many cells are in one of these states."""
        return sum(status.state in states for status in self.statuses)

    @property
    def closed(self) -> int:
        """How many cells are done or failed."""
        return sum(not status.is_open for status in self.statuses)


End = Literal[
    "passed",
    "wrong",
    "nondeterministic",
    "random",
    "unchecked",
    "raised",
    "crashed",
    "hung",
    "out-of-memory",
    "unsupported",
    "provisional",
    "not-finished",
]
"""How a row ended. `passed`: the results passed the accuracy check and there is a speedup.
`nondeterministic`: two runs of the baseline differ by more than rounding. `random`: the workload
draws random numbers, which backends draw differently. `unchecked`: the accuracy check was requested
but could not be run. `unsupported`: the workload or the candidate cannot be built in this target.
`provisional`: it has launches, but its cell is not finished, so its numbers will change.
`not-finished`: it was not run, was interrupted, or no measurement was usable."""
ENDS: Final[tuple[End, ...]] = get_args(End)

_SIGNIFICANCE: Final = 0.01
"""Significance level of each test for an error rate above alpha."""


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One workload in one precision with one candidate."""

    cell: str = ""
    """Id of the cell in the plan; empty for a comparison that is in no cell."""
    suite: str
    workload: str
    """Label of the workload."""
    mode: Mode
    precision: str
    baseline: str
    candidate: str
    end: End
    speedup: float | None = None
    interval: Interval | None = None
    selected_interval: Interval | None = None
    """Wider interval of a row among the best or worst, corrected for selection."""
    verdict: Verdict
    """The reported verdict, after the correction for all comparisons of the sweep."""
    verdict_alone: Verdict
    """The verdict before the correction."""
    p_value: float | None = None
    p_adjusted: float | None = None
    """Benjamini-Hochberg over all comparisons of the sweep with a usable speedup, across suites,
    precisions and candidates; None for wrong results and for rows without a speedup."""
    launches: int = 0
    baseline_ns: float | None = None
    candidate_ns: float | None = None
    compile_s: float | None = None
    """Compile time with cold caches."""
    memory_ratio: float | None = None
    """Peak memory, candidate / baseline; None unless both were measured with the same method."""
    graph_breaks: int | None = None
    """Graph breaks of the candidate; None if it was not compiled."""
    break_even: float | None = None
    """Iterations after which the saved time exceeds the compile time; None if no time is saved."""
    untrusted: tuple[str, ...] = ()
    """Why its numbers are untrusted. Its verdict is then `untrusted`, and means exclude it."""
    reason: str = ""
    """Why it did not pass, or a caveat about its numbers."""
    log: str = ""
    log_tail: str = ""
    tries: int = 0
    run: str = ""
    """Id of the run that contains the comparison."""

    @property
    def trusted(self) -> bool:
        """Whether its numbers can be trusted."""
        return not self.untrusted

    @property
    def demoted(self) -> bool:
        """Whether the correction changed its verdict."""
        return self.verdict is not self.verdict_alone


@dataclass(frozen=True, kw_only=True)
class MeanSpeedup:
    """Geometric mean of speedups with its confidence interval, for exactly these workloads."""

    speedup: float
    interval: Interval
    workloads: int
    scope: Scope = "launches"


@dataclass(frozen=True, kw_only=True)
class GroupKey:
    """Properties shared by the rows of a group; empty means any."""

    suite: str = ""
    mode: str = ""
    precision: str = ""
    baseline: str
    candidate: str


@dataclass(frozen=True, kw_only=True)
class SweepGroup:
    """Summary of one candidate in one suite, mode and precision."""

    key: GroupKey
    workloads: int
    ends: tuple[tuple[End, int], ...]
    """Number of rows by end, where not zero."""
    verdicts: tuple[tuple[Verdict, int], ...]
    common: MeanSpeedup | None
    """Over the workloads that every candidate of the group passed."""
    own: MeanSpeedup | None
    """Over all workloads that this candidate passed: not comparable between candidates."""
    not_wrong: MeanSpeedup | None = None
    """Including rows whose results could not be verified, because two runs of the baseline differ;
    None if there are none."""
    compiled: int = 0
    """Number of rows with a compile time."""
    compile_median_s: float | None = None
    compile_sum_s: float | None = None
    memory_ratio: float | None = None
    """Geometric mean of candidate / baseline."""
    memory_rows: int = 0
    break_even_median: float | None = None
    break_even_rows: int = 0
    untrusted: int = 0
    """Number of untrusted rows, which means exclude."""

    @property
    def passed(self) -> int:
        """Number of rows that passed."""
        return dict(self.ends).get("passed", 0)

    @property
    def pass_rate(self) -> float:
        """Share of all rows, including rows that were never run."""
        return self.passed / self.workloads if self.workloads else 0.0


@dataclass(frozen=True, kw_only=True)
class FalseAlarms:
    """How often an A/A sweep, which compares everything with itself, reported a difference."""

    comparisons: int
    """Comparisons with a test."""
    alpha: float
    """The nominal error rate."""
    significant: int
    """Comparisons whose interval excludes 1."""
    called: int
    """Verdicts faster or slower before the correction: significant and outside the margin."""
    called_adjusted: int
    """Verdicts faster or slower after the correction for all comparisons."""
    rate: Interval
    """Wilson interval of the significant share."""
    chance: float
    """Probability of at least this many significant comparisons if the error rate is alpha."""
    bins: tuple[int, ...]
    """Histogram of the p-values, in bins of equal width from 0 to 1."""
    excess: float
    """Largest excess of small p-values over the uniform distribution."""
    excess_chance: float
    """p-value of the excess (one-sided Kolmogorov-Smirnov test)."""
    shared_baselines: bool = False
    """Several candidates share one baseline, so the comparisons are not independent."""

    @property
    def within(self) -> bool:
        """Whether the observed rate is consistent with the nominal error rate."""
        return self.chance > _SIGNIFICANCE and self.excess_chance > _SIGNIFICANCE


@dataclass(frozen=True, kw_only=True)
class SummarizedRun:
    """A run whose comparisons are in the summary."""

    id: str
    precision: str
    name: str = ""
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """The summary of a sweep."""

    name: str
    created: str = ""
    torchyard: str = ""
    revision: str = ""
    shard: tuple[int, int] = (1, 1)
    null: bool = False
    checked: bool = True
    """False if the accuracy check was off: `passed` then only means that there is a speedup."""
    alpha: float
    margin: float
    cells: int
    cells_finished: int
    """Cells that are done or failed."""
    rows: tuple[SweepRow, ...]
    groups: tuple[SweepGroup, ...]
    """In plan order; the candidates of one suite, mode and precision are adjacent."""
    totals: tuple[SweepGroup, ...] = ()
    """One per candidate, over all groups; empty if each candidate has one group."""
    best: tuple[SweepRow, ...] = ()
    worst: tuple[SweepRow, ...] = ()
    false_alarms: FalseAlarms | None = None
    """Only of an A/A sweep."""
    runs: tuple[SummarizedRun, ...] = ()
    machines: tuple[str, ...] = ()
    """Host, processor, memory and GPUs of every machine that measured."""
    torch: tuple[str, ...] = ()
    """Versions of torch."""
    doubts: tuple[str, ...] = ()
    """Warnings about the sweep as a whole, most severe first."""

    @property
    def not_passed(self) -> tuple[SweepRow, ...]:
        """Rows that did not pass; without provisional ones."""
        return tuple(row for row in self.rows if row.end not in ("passed", "provisional"))

    @property
    def provisional(self) -> tuple[SweepRow, ...]:
        """Rows of cells that are not finished, with the launches so far."""
        return tuple(row for row in self.rows if row.end == "provisional")

    @property
    def candidates(self) -> tuple[str, ...]:
        """Candidate names, in plan order."""
        return tuple(dict.fromkeys(row.candidate for row in self.rows))
