"""The comparison of two sides, which may come from different runs. No I/O.

Within one run, comparisons are measured in pairs. Two runs are not paired, and the conclusions
depend on what they share, so every row states what its data supports. `ratio` is the time of
`one` divided by the time of `other`: above 1 the other side is faster. A row without support has
a number and no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from torchyard.core.comparison import Interval, Verdict

__all__ = [
    "SUPPORTS",
    "Basis",
    "CrossComparison",
    "CrossMean",
    "CrossRow",
    "CrossSide",
    "FactDifference",
    "SideNumbers",
    "SideState",
    "Support",
    "Unpaired",
]

Support = Literal["interleaved", "common baseline", "not supported"]
SUPPORTS: Final[tuple[Support, ...]] = get_args(Support)
"""Measured in the same rounds of one run; each measured beside the same baseline; neither."""

Basis = Literal["pairs", "speedups", "times"]
"""What the ratio is of: paired blocks, two speedups over one baseline, or two plain times."""

SideState = Literal["measured", "absent", "failed", "wrong", "no number"]


@dataclass(frozen=True, kw_only=True)
class CrossSide:
    """One side as a whole: a variant of a run, or of the runs of a saved baseline."""

    text: str
    """As the user named it."""
    runs: tuple[str, ...]
    variants: tuple[str, ...]
    started: str = ""
    """Of the newest run."""
    machine: str = ""
    machine_text: str = ""
    torch: str = ""
    revision: str = ""


@dataclass(frozen=True, kw_only=True)
class SideNumbers:
    """What one side has of one workload. None means unavailable."""

    variant: str
    baseline: str = ""
    """What it was measured beside; empty when it is its run's baseline itself."""
    time_ns: float | None = None
    speedup: float | None = None
    """Over that baseline, with its interval."""
    interval: Interval | None = None
    launches: int = 0
    sessions: int = 1
    """Runs behind the numbers."""
    baseline_ns: float | None = None
    compile_s: float | None = None
    memory_bytes: int | None = None
    dirty_share: float | None = None
    trusted: bool = True
    """Whether all sessions behind the numbers are trusted."""


@dataclass(frozen=True, kw_only=True)
class CrossRow:
    """One workload that both sides have."""

    workload: str
    one: SideNumbers
    other: SideNumbers
    support: Support
    basis: Basis
    alike: bool = False
    """Whether all but the candidates is alike: machine, settings and baseline."""
    verdict: Verdict | None = None
    """None when the comparison is not supported; `untrusted` when numbers of a side must not be
    used."""
    ratio: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    """After Benjamini-Hochberg over the supported rows."""
    log_error: float | None = None
    """Standard error of the log ratio, looks and sessions included."""
    degrees: float | None = None
    """Degrees of freedom of that error."""
    reasons: tuple[str, ...] = ()
    """Why there is no verdict, or what the reader of the number must know."""
    untrusted: tuple[str, ...] = ()
    """Why the numbers must not be trusted. Such a row has no support, p-value or place in a mean."""

    @property
    def trusted(self) -> bool:
        """Whether the numbers may be used."""
        return not self.untrusted

    @property
    def baseline_shift(self) -> float | None:
        """How much longer the baseline itself took beside `other`; tells of the machine's drift."""
        before, after = self.one.baseline_ns, self.other.baseline_ns
        return after / before - 1.0 if before and after else None


@dataclass(frozen=True, kw_only=True)
class Unpaired:
    """A workload that cannot be compared: one side lacks it, or has no sound number of it."""

    workload: str
    variants: tuple[str, str]
    one: SideState
    other: SideState
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class FactDifference:
    """A fact that differs between the sides."""

    name: str
    one: str
    other: str
    blocks: bool = False
    """Whether it is a reason why the comparison is not supported."""


@dataclass(frozen=True, kw_only=True)
class CrossMean:
    """Geometric mean of the ratios of the supported rows."""

    ratio: float
    interval: Interval
    rows: int


@dataclass(frozen=True, kw_only=True)
class CrossComparison:
    """Everything there is to say of two sides."""

    one: CrossSide
    other: CrossSide
    rows: tuple[CrossRow, ...]
    unpaired: tuple[Unpaired, ...]
    facts: tuple[FactDifference, ...]
    """The ones that matter most first."""
    mean: CrossMean | None
    confidence: float
    margin: float
    session_sd: float
    """What two sessions of the same code are taken to differ by, as a fraction of the speedup."""
