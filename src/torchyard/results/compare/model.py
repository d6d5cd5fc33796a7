"""The comparison of two sides, which may come from different runs. No I/O.

Within one run, comparisons are measured in pairs. Two runs are not paired, so every row states what
its data supports. `ratio` is the time of `one` divided by the time of `other`: above 1 the other side
is faster. A row without support has a ratio and no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchyard.core.comparison import Interval, Verdict

Support = Literal["interleaved", "common baseline", "not supported"]
"""Measured in the same rounds of one run; both measured against the same baseline; neither."""

Basis = Literal["pairs", "speedups", "times"]
"""The ratio is of paired blocks, of two speedups over one baseline, or of two unpaired times."""

SideState = Literal["measured", "absent", "failed", "wrong", "no number"]


@dataclass(frozen=True, kw_only=True)
class CrossSide:
    """One side of the comparison: variants of a run, or of the runs of a saved baseline."""

    text: str
    """As given by the user."""
    runs: tuple[str, ...]
    variants: tuple[str, ...]
    started: str = ""
    """Start of the newest run."""
    machine: str = ""
    machine_text: str = ""
    torch: str = ""
    revision: str = ""


@dataclass(frozen=True, kw_only=True)
class SideNumbers:
    """The numbers of one side for one workload. None means unavailable."""

    variant: str
    baseline: str = ""
    """The baseline it was measured against; empty if it is itself the baseline of its run."""
    time_ns: float | None = None
    speedup: float | None = None
    """Speedup over that baseline, with its interval."""
    interval: Interval | None = None
    launches: int = 0
    sessions: int = 1
    """Number of runs that the numbers are from."""
    baseline_ns: float | None = None
    compile_s: float | None = None
    memory_bytes: int | None = None
    dirty_share: float | None = None
    trusted: bool = True
    """Whether all of these runs are trusted."""


@dataclass(frozen=True, kw_only=True)
class CrossRow:
    """A workload that both sides have."""

    workload: str
    one: SideNumbers
    other: SideNumbers
    support: Support
    basis: Basis
    alike: bool = False
    """Whether machine, settings and baseline are equal."""
    verdict: Verdict | None = None
    """None if the comparison is not supported; `untrusted` if a side is untrusted."""
    ratio: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    """Corrected over the supported rows (Benjamini-Hochberg)."""
    log_error: float | None = None
    """Standard error of the log ratio, including interim analyses and sessions."""
    degrees: float | None = None
    """Degrees of freedom of the standard error."""
    reasons: tuple[str, ...] = ()
    """Why there is no verdict, or caveats about the ratio."""
    untrusted: tuple[str, ...] = ()
    """Why the numbers are untrusted. Such a row has no support and no p-value; means exclude it."""

    @property
    def trusted(self) -> bool:
        """Whether the numbers can be trusted."""
        return not self.untrusted

    @property
    def baseline_shift(self) -> float | None:
        """Relative change of the baseline's time from `one` to `other`: a measure of machine drift."""
        before, after = self.one.baseline_ns, self.other.baseline_ns
        return after / before - 1.0 if before and after else None


@dataclass(frozen=True, kw_only=True)
class Unpaired:
    """A workload that cannot be compared: one side lacks it, or has no valid number."""

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
    """Whether it makes the comparison unsupported."""


@dataclass(frozen=True, kw_only=True)
class CrossMean:
    """Geometric mean of the ratios of the supported rows."""

    ratio: float
    interval: Interval
    rows: int


@dataclass(frozen=True, kw_only=True)
class CrossComparison:
    """The comparison of two sides."""

    one: CrossSide
    other: CrossSide
    rows: tuple[CrossRow, ...]
    unpaired: tuple[Unpaired, ...]
    facts: tuple[FactDifference, ...]
    """Most important first."""
    mean: CrossMean | None
    confidence: float
    margin: float
    session_sd: float
    """Assumed variation between sessions of the same code, as a fraction of the speedup."""
