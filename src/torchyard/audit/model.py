"""Results of a noise audit and of the measured effect of quieting a machine. No I/O.

An audit compares identical code with itself. Spreads are standard deviations of the logarithms of
times, which for small values are fractions of the time. "Within" is the spread of pairs of one
launch, "between" is the spread that fresh processes add; both after pairing, as `torchyard bench`
would see them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.comparison import Interval, Verdict

NOISY_DIFFERENCE: Final = 0.10
NOISY_MINUTES: Final = 5
"""A machine is too noisy when it cannot resolve this difference in this many minutes."""
DIRTY_SHARE_LIMIT: Final = 0.5
"""It is also too noisy when a larger share of its blocks than this was disturbed."""

DETECTING_LAUNCHES: Final = 10
"""Number of launches for which the difference is given that earlier comparisons could detect."""

Change = Literal["quieter", "noisier", "not told apart", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A standard deviation with its confidence interval; None with too few launches."""

    sd: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class AuditLaunch:
    """One pair of fresh processes."""

    began_s: float
    """Start of its first block, since the first block of the audit."""
    ended_s: float
    start_s: float
    """Time to start and warm up its processes."""
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


def effects_of(launches: Iterable[AuditLaunch]) -> list[float]:
    """Return the known effects."""
    return [launch.effect for launch in launches if launch.effect is not None]


def spreads_of(launches: Iterable[AuditLaunch]) -> list[float]:
    """Return the known spreads within launches."""
    return [launch.spread for launch in launches if launch.spread is not None]


def log_levels_of(launches: Iterable[AuditLaunch]) -> list[float]:
    """Return the log times of the first side, which does not use pairing."""
    return [math.log(launch.levels_ns[0]) for launch in launches]


@dataclass(frozen=True, kw_only=True)
class EarlierSpread:
    """Spread between launches in the earlier comparisons of one machine, device and suite."""

    machine: str
    device: str
    suite: str
    comparisons: int
    launches: int
    launch_sd: float
    """Standard deviation between launches beyond the noise of pairs, pooled over comparisons."""
    observed_sd: float
    """The same with the noise of pairs."""
    detectable: float | None
    """Smallest difference that `DETECTING_LAUNCHES` launches detect with 80 % power at `observed_sd`."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How the machine's speed moved: slope of the log time, which is a fraction, per minute."""

    per_minute: float
    interval: Interval | None
    """None with fewer than five launches."""
    explains: float
    """Share of the variance of block times that the line explains, 0 to 1."""

    @property
    def shown(self) -> bool:
        """Whether the drift is significant: the confidence interval excludes 0."""
        return self.interval is not None and not self.interval.covers(0.0)


@dataclass(frozen=True, kw_only=True)
class Resolvable:
    """Smallest difference that a comparison of this duration detects with 80 % power."""

    minutes: float
    launches: int
    difference: float | None
    """A fraction of the time; None if fewer than two launches fit."""
    interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """A noise source that was active during blocks."""

    kind: str
    """process, kernel thread, interrupt, steal, ..."""
    what: str
    amount: float
    unit: str
    """`cores`, `per second` or `of the time`, as an average over the blocks."""
    share_of_blocks: float
    """Share of the blocks during which it was above its threshold."""
    slower: float | None = None
    """How much longer those blocks took than the others of the same launches (a fraction); None
    with too few of either. A correlation, not proof of the cause."""
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class BlockPoint:
    """One block of the chart."""

    at_s: float
    launch: int
    side: int
    """0 or 1: which of the two identical sides."""
    time_ns: float
    dirty: bool


@dataclass(frozen=True, kw_only=True)
class AuditSetup:
    """When, where and what an audit measured."""

    started: str
    """UTC, ISO 8601."""
    asked_s: float
    interrupted: bool = False
    label: str = ""
    """State of the machine, such as `plain` or the name of a knob; empty for an audit by itself."""
    machine: tuple[tuple[str, str], ...] = ()
    target: tuple[tuple[str, str], ...] = ()
    kernel: str
    threads: int
    cores: tuple[int, ...] = ()
    """CPUs it was pinned to; empty: not pinned."""


@dataclass(frozen=True, kw_only=True)
class Audit(AuditSetup):
    """Noise of a machine, and its sources."""

    measured_s: float
    time_ns: float | None
    """Time of one iteration: median over clean blocks."""
    launches: tuple[AuditLaunch, ...]
    pairs: int
    blocks: int
    dirty_blocks: int
    dirty: tuple[tuple[str, int], ...] = ()
    """Number of blocks by reason, most frequent first; a block may have several reasons."""
    within: Spread
    """Variation between pairs within a launch: a robust estimate for the typical launch."""
    between: Spread
    """Variation between launches, which more pairs do not reduce."""
    unpaired: Spread
    """Variation between launches without pairing, as when one variant runs after the other."""
    drift: Drift | None = None
    verdict: Verdict = Verdict.UNDECIDED
    """Of the two identical sides; faster or slower is a false positive."""
    ratio: float | None = None
    ratio_interval: Interval | None = None
    resolvable: tuple[Resolvable, ...] = ()
    """One for each minute from 1 to 30."""
    assumptions: tuple[str, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()
    """Largest first."""
    watched: tuple[tuple[str, str], ...] = ()
    """About the load monitor: samples, its own cost, and unavailable sources (`machine.model.UNAVAILABLE`)."""
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
        """Whether the identical sides were called different (a false positive)."""
        return self.verdict in {Verdict.FASTER, Verdict.SLOWER}

    def in_minutes(self, minutes: float) -> Resolvable | None:
        """Return what is resolvable in this time, if it was computed."""
        return next((one for one in self.resolvable if one.minutes == minutes), None)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Why measurements on this machine are not trustworthy now; empty if they are."""
        reasons: list[str] = []
        reachable = self.in_minutes(NOISY_MINUTES)
        smallest = None if reachable is None else reachable.difference
        # Without an interval the spread is unknown: two launches can agree by chance.
        if smallest is None or reachable is None or reachable.interval is None:
            reasons.append("too few launches to estimate the resolvable difference")
        elif smallest > NOISY_DIFFERENCE:
            reasons.append(
                f"{NOISY_MINUTES} minutes cannot resolve a difference of {NOISY_DIFFERENCE:.0%}"
            )
        if self.dirty_share > DIRTY_SHARE_LIMIT:
            reasons.append(f"{self.dirty_share:.0%} of the blocks were disturbed")
        return tuple(reasons)


@dataclass(frozen=True, kw_only=True)
class AuditChange:
    """One spread in two audits, and the ratio of later to earlier."""

    name: str
    before: float | None
    after: float | None
    ratio: float | None
    interval: Interval | None
    verdict: Change


@dataclass(frozen=True, kw_only=True)
class QuietingEffect:
    """Effect of one set of knobs: the quieted machine against the same machine before and after."""

    what: str
    """`everything`, or the name of a knob."""
    written: tuple[str, ...]
    """Knobs that changed something."""
    refused: tuple[tuple[str, str], ...] = ()
    """Knob and reason."""
    plain: tuple[Audit, ...]
    """The unchanged machine, before and after quieting, so that drift is in both."""
    quieted: Audit
    changes: tuple[AuditChange, ...]
    """Quieted over plain, for each kind of spread."""
    unsteady: tuple[str, ...] = ()
    """Spreads in which the plain audits differ from each other: the machine changed by itself, so
    the effect is not proven."""
