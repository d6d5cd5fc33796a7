"""A comparison: the result of baseline against candidate on one workload.

`speedup` is baseline time divided by candidate time: above 1, the candidate is faster. No I/O, and
no arithmetic beyond formatting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from torchyard.core.study import Workload
from torchyard.core.units import format_duration

__all__ = [
    "BUSY",
    "TIMES_AGREE",
    "UNTRUSTED",
    "WITHOUT_SPEED",
    "Accuracy",
    "AccuracyStatus",
    "Comparison",
    "Estimate",
    "Failure",
    "GuardSummary",
    "Interval",
    "Scope",
    "VariantMetrics",
    "Verdict",
]

Scope = Literal["launches", "processes"]

BUSY: Final = "busy machine"
"""First words of the note that runs of earlier releases carry instead of `Comparison.untrusted`."""

TIMES_AGREE: Final = 2e-3
"""Largest difference of log(time ratio) from log(speedup) that three shown digits hide."""


class Verdict(StrEnum):
    """What the comparison says. `wrong` and `failed` are answers too."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"
    UNTRUSTED = "untrusted"
    """Shown instead of a timing verdict that must not be used; see `Comparison.state`."""
    WRONG = "wrong"
    FAILED = "failed"


UNTRUSTED: Final = Verdict.UNTRUSTED
WITHOUT_SPEED: Final = frozenset({Verdict.WRONG, Verdict.FAILED, Verdict.UNTRUSTED})
"""States in which a speedup must not be used: no mean, no ranking, no gate."""


class AccuracyStatus(StrEnum):
    """How the candidate's results relate to the reference."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    LESS_ACCURATE = "less-accurate"
    """Right within what rounding can do, but measurably less accurate than the baseline."""
    RANDOM = "random"
    """The workload draws random numbers that the candidate draws differently: not checked."""
    NONDETERMINISTIC = "nondeterministic"
    """Two runs of the baseline differ by more than rounding, and the candidate by as much: not checked."""
    UNCHECKED = "unchecked"


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How the candidate's results were checked and what came out."""

    status: AccuracyStatus
    method: str = ""
    """The reference (`float64 reference` or `float32 baseline`) and the measure of its rounding error."""
    max_error: float | None = None
    """Largest absolute difference from the baseline's results."""
    candidate_rmse: float | None = None
    baseline_rmse: float | None = None
    """Root mean square distance from the float64 reference."""
    nondeterminism: float | None = None
    """Largest difference between two runs of the baseline on the same inputs and seed."""
    candidate_nondeterminism: float | None = None
    """The same of the candidate; None where the shapes differ, or where it was not run twice."""
    without_reference: str = ""
    """Why there was no float64 reference, so that the baseline was one; empty when there was one."""
    compared: int = 0
    """How many tensors were compared: outputs, and in training loss, gradients, parameters."""
    detail: str = ""

    @property
    def right(self) -> bool:
        """Whether the results were checked and no error was found that rounding does not explain."""
        return self.status in {AccuracyStatus.PASS, AccuracyStatus.LESS_ACCURATE}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Low and high end at a level of confidence."""

    low: float
    high: float
    confidence: float = 0.95

    def covers(self, value: float) -> bool:
        """Whether the value lies inside."""
        return self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the statistics say of one comparison's pairs; filled by `stats`."""

    verdict: Verdict
    speedup: float
    interval: Interval | None
    """Of the speedup. None while there are too few launches for one."""
    p_value: float | None
    """Two-sided, paired, over launches, valid under the stopping rule that was used."""
    p_adjusted: float | None = None
    """The same after Benjamini-Hochberg over the run's comparisons."""
    scope: Scope = "launches"
    """What the interval speaks for: processes started anew, or only the ones that ran."""
    launches: int
    pairs: int
    pairs_dropped: int
    launch_sd: float | None
    """Standard deviation between launches of the log speedup."""
    pair_sd: float | None
    """Robust standard deviation of the log speedup between pairs inside a launch."""
    minimum_detectable: float | None
    """Smallest slowdown that this design finds in 80 % of cases (a fraction)."""
    time_needed_s: float | None
    """Measuring time that would reach the precision asked for; None when it is unknown."""
    time_needed_range_s: tuple[float, float] | None = None
    """80 % range of that time, from what the number of launches says of their spread."""
    mean_speedup: float | None = None
    """From the means of blocks and pairs instead of their medians: shows costs that come rarely."""
    withheld: tuple[str, ...] = ()
    """Why the verdict that the interval allows is not given; these are among the reasons, too."""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VariantMetrics:
    """What is known of one side besides the comparison. None means unavailable."""

    time_ns: float | None = None
    """Of one iteration. Both sides of a row with an estimate have the ratio of its speedup; without
    an estimate it is the median over clean blocks."""
    compile_cold_s: float | None = None
    compile_warm_s: float | None = None
    peak_memory_bytes: int | None = None
    memory_method: str = ""
    graph_breaks: tuple[tuple[str, int], ...] = ()
    graphs: int | None = None
    flops: float | None = None
    """Floating-point operations of one iteration."""
    moved_bytes: float | None = None
    """Bytes that one iteration must read and write at least, where the workload knows them."""
    recompiles: int | None = None
    """How often the compiler compiled again after the first call."""
    recompile_reasons: tuple[tuple[str, int], ...] = ()
    """What for, each with its number."""
    energy_j: float | None = None
    """Of one iteration, where the device counts it."""
    batch_size: int | None = None
    """The one that was run, also where the workload names none; None where there is no batch."""
    loss: str = ""
    """In training, what the backward pass starts from, in words: `cross-entropy`, `the model's own`."""
    torch_version: str = ""
    unavailable: tuple[tuple[str, str], ...] = ()
    """Names of fields above that could not be measured, and why."""

    @property
    def flops_per_second(self) -> float | None:
        """Operations of an iteration over its time, where both are known."""
        if self.flops is None or not self.time_ns:
            return None
        return self.flops * 1e9 / self.time_ns


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no number: what happened, to which variant, in which phase."""

    kind: str
    """One word per cause: raised, crashed, killed, out-of-memory, timeout, protocol, no-torch."""
    phase: str
    variant: str
    message: str
    hint: str = ""
    log: str = ""
    log_tail: str = ""


@dataclass(frozen=True, kw_only=True)
class GuardSummary:
    """How many blocks of a comparison were disturbed, and by what."""

    blocks: int = 0
    """Of both variants; 0 when it was not counted."""
    dirty: int = 0
    reasons: tuple[tuple[str, int], ...] = ()
    """Each reason with its number of blocks, most frequent first; a block can have several."""
    temperature_c: tuple[float, float] | None = None
    """Lowest and highest of the processor."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One row of the table."""

    workload: Workload
    baseline: str
    candidate: str
    verdict: Verdict
    estimate: Estimate | None = None
    accuracy: Accuracy | None = None
    baseline_metrics: VariantMetrics = field(default_factory=VariantMetrics)
    candidate_metrics: VariantMetrics = field(default_factory=VariantMetrics)
    failure: Failure | None = None
    before_failure: Estimate | None = None
    """What the launches before the failure said. Not a result: shown in a note, used for nothing."""
    shared_process: bool = False
    elapsed_s: float = 0.0
    timed_share: float | None = None
    """Share of the measuring time that was spent inside timed blocks."""
    guards: GuardSummary = field(default_factory=GuardSummary)
    notes: tuple[str, ...] = ()
    untrusted: tuple[str, ...] = ()
    """Why the numbers of this row must not be trusted, a sentence each. Empty when they may be."""

    def __post_init__(self) -> None:
        """Read rows of earlier releases, which carry the reason as a note."""
        moved = tuple(note for note in self.notes if note.startswith(BUSY))
        if moved:
            kept = tuple(note for note in self.notes if note not in moved)
            reasons = tuple(dict.fromkeys((*self.untrusted, *moved)))
            object.__setattr__(self, "notes", kept)
            object.__setattr__(self, "untrusted", reasons)

    @property
    def trusted(self) -> bool:
        """Whether the numbers may be used. Every view shows `state` instead of `verdict`."""
        return not self.untrusted

    @property
    def state(self) -> Verdict:
        """The word to show: the verdict, or `untrusted` where a timing verdict must not be used.

        `wrong` and `failed` do not depend on times and are shown either way.
        """
        if self.trusted or self.verdict in {Verdict.WRONG, Verdict.FAILED}:
            return self.verdict
        return Verdict.UNTRUSTED

    @property
    def passed(self) -> bool:
        """Whether it ran with results that were found right, or right and less accurate.

        What was not checked has not passed. Where the check was switched off, having run is all there
        is to pass.
        """
        if self.verdict in {Verdict.WRONG, Verdict.FAILED}:
            return False
        return self.accuracy is None or self.accuracy.right

    @property
    def not_checked(self) -> bool:
        """Whether it ran and the check of its results was wanted, but could not decide."""
        if self.verdict in {Verdict.WRONG, Verdict.FAILED} or self.accuracy is None:
            return False
        return not self.accuracy.right

    @property
    def break_even_iterations(self) -> float | None:
        """Iterations after which compiling has paid for itself; infinite when it never does.

        The first compilation of the candidate, beyond the baseline's, over the time that it saves.
        None where a compile time or the speedup is unknown or not trusted.
        """
        return None if self.estimate is None else self._break_even(self.estimate.speedup)

    @property
    def break_even_interval(self) -> Interval | None:
        """The same for both ends of the speedup's interval; the high end may be infinite."""
        interval = None if self.estimate is None else self.estimate.interval
        if interval is None:
            return None
        low, high = self._break_even(interval.high), self._break_even(interval.low)
        if low is None or high is None:
            return None
        return Interval(low=low, high=high, confidence=interval.confidence)

    def _break_even(self, speedup: float) -> float | None:
        cost_s, time_ns = self.candidate_metrics.compile_cold_s, self.baseline_metrics.time_ns
        if cost_s is None or not time_ns or self.state in WITHOUT_SPEED:
            return None
        cost_s = max(0.0, cost_s - (self.baseline_metrics.compile_cold_s or 0.0))
        if not speedup > 1:
            return math.inf
        return cost_s * 1e9 / (time_ns * (1 - 1 / speedup))

    def with_times_of_estimate(self) -> Comparison:
        """Return the row with times whose ratio is the speedup.

        Runs of earlier releases stored the median over all clean blocks of each side, which can
        contradict the speedup of the pairs. The geometric mean of both times is kept, and a note
        says what was stored.
        """
        before, after = self.baseline_metrics.time_ns, self.candidate_metrics.time_ns
        found = self.estimate
        if (
            found is None
            or not found.launches
            or not before
            or not after
            or before < 0
            or after < 0
        ):
            return self
        if not 0.0 < found.speedup < math.inf:
            return self
        if abs(math.log(before / after / found.speedup)) <= TIMES_AGREE:
            return self
        middle, root = math.sqrt(before) * math.sqrt(after), math.sqrt(found.speedup)
        note = (
            "times follow from the speedup and the geometric mean of both sides; medians of all "
            f"blocks: {format_duration(before)} and {format_duration(after)}"
        )
        return replace(
            self,
            baseline_metrics=replace(self.baseline_metrics, time_ns=middle * root),
            candidate_metrics=replace(self.candidate_metrics, time_ns=middle / root),
            notes=(*self.notes, note),
        )
