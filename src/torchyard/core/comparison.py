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

Scope = Literal["launches", "processes"]

BUSY_NOTE_PREFIX: Final = "busy machine"
"""Prefix of the note that runs of earlier releases carry instead of `Comparison.untrusted`."""

NOISY: Final = "noisy machine"
"""Start of the reason for distrust if most pairs were disturbed."""
DROPPED: Final = " pairs dropped: "
"""Part of the note about disturbed pairs that were dropped."""
WRONG_RESULTS: Final = "wrong results: "
"""Start of the note with the detail of wrong results."""

TIME_RATIO_TOLERANCE: Final = 2e-3
"""Largest difference between log(time ratio) and log(speedup) that is invisible in three digits."""


class Verdict(StrEnum):
    """The verdict of a comparison. `wrong` and `failed` are verdicts, too."""

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
"""States in which a speedup must not be used in means, rankings or gates."""


class AccuracyStatus(StrEnum):
    """Outcome of the accuracy check of a candidate."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    LESS_ACCURATE = "less-accurate"
    """Errors of a lower precision than the candidate's, without outliers or systematic deviation."""
    RANDOM = "random"
    """The candidate draws other random numbers than the baseline: not checked."""
    NONDETERMINISTIC = "nondeterministic"
    """Two runs of the baseline differ by more than rounding error, and the candidate by as much: not checked."""
    UNCHECKED = "unchecked"


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Method and outcome of the accuracy check of a candidate."""

    status: AccuracyStatus
    method: str = ""
    """The reference (`float64 reference` or `float32 baseline`) and the estimate of the rounding error."""
    max_error: float | None = None
    """Largest absolute difference from the baseline's results."""
    candidate_rmse: float | None = None
    baseline_rmse: float | None = None
    """Root mean square error against the float64 reference."""
    nondeterminism: float | None = None
    """Largest difference between two runs of the baseline on the same inputs and seed."""
    candidate_nondeterminism: float | None = None
    """The same for the candidate; None where the shapes differ, or where it was not run twice."""
    without_reference: str = ""
    """Why the baseline served as reference instead of a float64 run; empty with a float64 reference."""
    compared: int = 0
    """Number of compared tensors: outputs, and in training loss, gradients, parameters."""
    detail: str = ""

    @property
    def right(self) -> bool:
        """Whether the results were checked and every error is explained by rounding."""
        return self.status in {AccuracyStatus.PASS, AccuracyStatus.LESS_ACCURATE}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    confidence: float = 0.95

    def covers(self, value: float) -> bool:
        """Whether the value lies inside."""
        return self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Statistics of the pairs of one comparison; computed by `stats`."""

    verdict: Verdict
    speedup: float
    interval: Interval | None
    """Confidence interval of the speedup; None while there are too few launches."""
    p_value: float | None
    """Two-sided, paired, over launches, valid under the stopping rule that was used."""
    p_adjusted: float | None = None
    """The same after Benjamini-Hochberg over the run's comparisons."""
    scope: Scope = "launches"
    """Scope of the interval: new launches (`launches`), or only the processes that ran (`processes`)."""
    launches: int
    pairs: int
    pairs_dropped: int
    launch_sd: float | None
    """Standard deviation of the log speedup between launches."""
    pair_sd: float | None
    """Robust standard deviation of the log speedup between pairs inside a launch."""
    degrees: float | None = None
    """Degrees of freedom of the interval over launches; None in results of older versions."""
    minimum_detectable: float | None
    """Smallest slowdown that this design detects with 80 % power (a fraction)."""
    time_needed_s: float | None
    """Measuring time needed to reach the requested precision; None when unknown."""
    time_needed_range_s: tuple[float, float] | None = None
    """80 % range of that time, given the uncertainty of the launch-to-launch variance."""
    mean_speedup: float | None = None
    """Speedup from means instead of medians of blocks and pairs: includes rare costs."""
    withheld: tuple[str, ...] = ()
    """Why the verdict that the interval allows is withheld; also part of `reasons`."""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VariantMetrics:
    """Metrics of one variant of a comparison. None means unavailable."""

    time_ns: float | None = None
    """Time of one iteration. With an estimate, the ratio of both times is its speedup; without an
    estimate it is the median over clean blocks."""
    compile_cold_s: float | None = None
    compile_warm_s: float | None = None
    cpu_time_ns: float | None = None
    """User and system time of one run of a whole program."""
    peak_memory_bytes: int | None = None
    memory_method: str = ""
    graph_breaks: tuple[tuple[str, int], ...] = ()
    graphs: int | None = None
    flops: float | None = None
    """Floating-point operations of one iteration."""
    moved_bytes: float | None = None
    """Minimum number of bytes that one iteration reads and writes, where the workload defines it."""
    recompiles: int | None = None
    """Number of recompilations after the first call."""
    recompile_reasons: tuple[tuple[str, int], ...] = ()
    """Reasons of the recompilations, each with its count."""
    energy_j: float | None = None
    """Energy of one iteration, where the device measures it."""
    batch_size: int | None = None
    """The batch size that was run, also when it is the default; None where there is no batch."""
    loss: str = ""
    """In training, the loss function: `cross-entropy`, `the model's own`."""
    torch_version: str = ""
    unavailable: tuple[tuple[str, str], ...] = ()
    """Fields above that could not be measured, each with the reason."""

    @property
    def graph_break_count(self) -> int | None:
        """Number of graph breaks; None if nothing was compiled."""
        breaks = sum(count for _, count in self.graph_breaks)
        return breaks if breaks or self.graphs is not None else None

    @property
    def flops_per_second(self) -> float | None:
        """Operations of an iteration over its time, where both are known."""
        if self.flops is None or not self.time_ns:
            return None
        return self.flops * 1e9 / self.time_ns


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no result: the failure kind, the variant and the phase."""

    kind: str
    """Failure kind: raised, crashed, killed, out-of-memory, timeout, protocol, no-torch, ..."""
    phase: str
    variant: str
    message: str
    hint: str = ""
    log: str = ""
    log_tail: str = ""


@dataclass(frozen=True, kw_only=True)
class GuardSummary:
    """Number of blocks of a comparison that guards marked as disturbed, and the reasons."""

    blocks: int = 0
    """Blocks of both variants; 0 when they were not counted."""
    dirty: int = 0
    reasons: tuple[tuple[str, int], ...] = ()
    """Each reason with its number of blocks, most frequent first; a block can have several."""
    temperature_c: tuple[float, float] | None = None
    """Lowest and highest CPU temperature."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of one candidate against the baseline on one workload."""

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
    """Estimate from the launches before the failure. Not a result: only shown in a note."""
    shared_process: bool = False
    elapsed_s: float = 0.0
    timed_share: float | None = None
    """Share of the measuring time that was spent inside timed blocks."""
    guards: GuardSummary = field(default_factory=GuardSummary)
    notes: tuple[str, ...] = ()
    untrusted: tuple[str, ...] = ()
    """Why the measurements of this comparison are not trustworthy; empty when they are."""

    def __post_init__(self) -> None:
        """Convert comparisons of earlier releases, which carry the reason as a note."""
        moved = tuple(note for note in self.notes if note.startswith(BUSY_NOTE_PREFIX))
        if moved:
            remaining_notes = tuple(note for note in self.notes if note not in moved)
            reasons = tuple(dict.fromkeys((*self.untrusted, *moved)))
            object.__setattr__(self, "notes", remaining_notes)
            object.__setattr__(self, "untrusted", reasons)

    @property
    def trusted(self) -> bool:
        """Whether the measurements may be used. Every view shows `state` instead of `verdict`."""
        return not self.untrusted

    @property
    def state(self) -> Verdict:
        """The verdict to show: `untrusted` instead of a timing verdict that must not be used.

        `wrong` and `failed` do not depend on times and are always shown.
        """
        if self.trusted or self.verdict in {Verdict.WRONG, Verdict.FAILED}:
            return self.verdict
        return Verdict.UNTRUSTED

    @property
    def passed(self) -> bool:
        """Whether it ran, and the accuracy check found its results correct.

        A comparison whose check was inconclusive has not passed. With the check disabled, every
        comparison that ran has passed.
        """
        if self.verdict in {Verdict.WRONG, Verdict.FAILED}:
            return False
        return self.accuracy is None or self.accuracy.right

    @property
    def not_checked(self) -> bool:
        """Whether it ran and its accuracy check was enabled, but inconclusive."""
        if self.verdict in {Verdict.WRONG, Verdict.FAILED} or self.accuracy is None:
            return False
        return not self.accuracy.right

    @property
    def break_even_iterations(self) -> float | None:
        """Iterations after which compilation has paid off; infinite when it never does.

        The cold compile time of the candidate beyond the baseline's, divided by the time saved per
        iteration. None where a compile time or the speedup is unknown or untrusted.
        """
        return None if self.estimate is None else self._break_even(self.estimate.speedup)

    @property
    def break_even_interval(self) -> Interval | None:
        """The break-even at both ends of the speedup's interval; the high end may be infinite."""
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
        """Return the comparison with times whose ratio is the speedup.

        Runs of earlier releases stored the median over all clean blocks of each variant, which can
        contradict the speedup of the pairs. The geometric mean of both times is kept, and a note
        gives the stored values.
        """
        before, after = self.baseline_metrics.time_ns, self.candidate_metrics.time_ns
        estimate = self.estimate
        if (
            estimate is None
            or not estimate.launches
            or not before
            or not after
            or before < 0
            or after < 0
        ):
            return self
        if not 0.0 < estimate.speedup < math.inf:
            return self
        if abs(math.log(before / after / estimate.speedup)) <= TIME_RATIO_TOLERANCE:
            return self
        middle, root = math.sqrt(before) * math.sqrt(after), math.sqrt(estimate.speedup)
        note = (
            "times follow from the speedup and the geometric mean of both variants; medians of all "
            f"blocks: {format_duration(before)} and {format_duration(after)}"
        )
        return replace(
            self,
            baseline_metrics=replace(self.baseline_metrics, time_ns=middle * root),
            candidate_metrics=replace(self.candidate_metrics, time_ns=middle / root),
            notes=(*self.notes, note),
        )
