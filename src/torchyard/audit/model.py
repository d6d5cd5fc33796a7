"""Results of a noise audit and of the measured effect of quieting a machine. No I/O.

An audit compares identical code with itself. Spreads are standard deviations of the logarithms of
times, which for small values are fractions of the time. "Within" is the spread of pairs of one
launch, "between" is the spread that fresh processes add; both after pairing, as `torchyard bench`
would see them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.comparison import Interval, Verdict

NOISY_DIFFERENCE: Final = 0.10
NOISY_MINUTES: Final = 5
"""A machine is too noisy when it cannot resolve this difference in this many minutes."""
DIRTY_SHARE_LIMIT: Final = 0.5
"""Or when more of its blocks than this were disturbed."""

Change = Literal["quieter", "noisier", "not told apart", "unknown"]
CHANGES: Final[tuple[Change, ...]] = ("quieter", "noisier", "not told apart", "unknown")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A standard deviation with its interval; None where there were too few launches."""

    sd: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class AuditLaunch:
    """One pair of fresh processes."""

    began_s: float
    """When its first block began, since the first block of the audit."""
    ended_s: float
    start_s: float
    """What starting and warming up its processes took."""
    levels_ns: tuple[float, float]
    """Time of one iteration on each side: median over its blocks."""
    effect: float | None
    """Median log ratio of its pairs; the two sides are identical, so anything but 0 is noise.
    None when too few pairs were clean."""
    spread: float | None
    """Standard deviation of its pairs' log ratios."""
    pairs: int
    dirty_blocks: int
    blocks: int


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How the machine's speed moved: slope of the log time, which is a fraction, per minute."""

    per_minute: float
    interval: Interval | None
    """None with fewer than five launches."""
    explains: float
    """Share of the variance of block times that goes with the line, 0 to 1."""

    @property
    def shown(self) -> bool:
        """Whether the interval leaves no doubt that there is a drift."""
        return self.interval is not None and not self.interval.covers(0.0)


@dataclass(frozen=True, kw_only=True)
class Resolvable:
    """The smallest difference that a comparison of so many minutes finds in 80 % of cases."""

    minutes: float
    launches: int
    difference: float | None
    """A fraction of the time; None when fewer than two launches fit."""
    interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Something that ran or happened beside the blocks."""

    kind: str
    """process, kernel thread, interrupt, steal, ..."""
    what: str
    amount: float
    unit: str
    """`cores`, `per second` or `of the time`, as an average over the blocks."""
    share_of_blocks: float
    """How many blocks it was beside, above its limit."""
    slower: float | None = None
    """How much longer blocks beside it took than the others of the same launches (a fraction);
    None when there were too few of either. Seen together, not proven to be the cause."""
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class BlockPoint:
    """One block for the picture."""

    at_s: float
    launch: int
    side: int
    """0 or 1: which of the two identical sides."""
    time_ns: float
    dirty: bool


@dataclass(frozen=True, kw_only=True)
class Audit:
    """How noisy the machine was, and what disturbed it."""

    started: str
    """UTC, ISO 8601."""
    asked_s: float
    measured_s: float
    interrupted: bool = False
    label: str = ""
    """What was special: `before`, `tuned`, `only governor`; empty for a plain audit."""
    machine: tuple[tuple[str, str], ...] = ()
    target: tuple[tuple[str, str], ...] = ()
    kernel: str
    threads: int
    cores: tuple[int, ...] = ()
    """Logical processors it was pinned to; empty: not pinned."""
    time_ns: float | None
    """Of one iteration: median over clean blocks."""
    launches: tuple[AuditLaunch, ...]
    pairs: int
    blocks: int
    dirty_blocks: int
    dirty: tuple[tuple[str, int], ...] = ()
    """Blocks by reason, most frequent first; a block may have several."""
    within: Spread
    """Between pairs of one launch: robust, typical launch."""
    between: Spread
    """Between launches: what no number of pairs removes."""
    unpaired: Spread
    """Between launches without pairing: what running one after the other would see."""
    drift: Drift | None = None
    verdict: Verdict = Verdict.UNDECIDED
    """Of one side against the other; faster or slower is a false alarm."""
    ratio: float | None = None
    ratio_interval: Interval | None = None
    resolvable: tuple[Resolvable, ...] = ()
    """One for each minute from 1 to 30."""
    assumptions: tuple[str, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()
    """The most harmful first."""
    watched: tuple[tuple[str, str], ...] = ()
    """How the watching went: samples, its own cost, and what could not be read, because ..."""
    series: tuple[BlockPoint, ...] = ()
    series_every: int = 1
    """The series holds every n-th block."""
    notes: tuple[str, ...] = ()

    @property
    def dirty_share(self) -> float:
        """Share of blocks that were disturbed."""
        return self.dirty_blocks / self.blocks if self.blocks else 0.0

    @property
    def false_alarm(self) -> bool:
        """Whether a difference was found between identical sides."""
        return self.verdict in {Verdict.FASTER, Verdict.SLOWER}

    def in_minutes(self, minutes: float) -> Resolvable | None:
        """What can be resolved in this time, where it was computed."""
        return next((one for one in self.resolvable if one.minutes == minutes), None)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Why numbers taken here now must not be believed; empty when the machine will do."""
        found: list[str] = []
        reachable = self.in_minutes(NOISY_MINUTES)
        smallest = None if reachable is None else reachable.difference
        # Without an interval the spread may be anything: two launches can agree by luck.
        if smallest is None or reachable is None or reachable.interval is None:
            found.append("too few launches to say what can be resolved")
        elif smallest > NOISY_DIFFERENCE:
            found.append(
                f"a difference of {NOISY_DIFFERENCE:.0%} cannot be resolved in "
                f"{NOISY_MINUTES} minutes"
            )
        if self.dirty_share > DIRTY_SHARE_LIMIT:
            found.append(f"{self.dirty_share:.0%} of the blocks were disturbed")
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class AuditChange:
    """One spread in two audits: later over earlier."""

    name: str
    before: float | None
    after: float | None
    ratio: float | None
    interval: Interval | None
    verdict: Change


@dataclass(frozen=True, kw_only=True)
class TuneEffect:
    """One set of knobs: the machine with them against the same machine before and after."""

    what: str
    """`everything`, or the name of a knob."""
    written: tuple[str, ...]
    """Knobs that changed something."""
    refused: tuple[tuple[str, str], ...] = ()
    """Knob and reason."""
    plain: tuple[Audit, ...]
    """As the machine is, before and after the tune: what drifts meanwhile is in both."""
    tuned: Audit
    changes: tuple[AuditChange, ...]
    """Tuned over plain, for each kind of spread."""
    unsteady: tuple[str, ...] = ()
    """Spreads in which the plain audits differ from each other: the machine changed by itself, and
    what changed with the tune is not proven to come from it."""
