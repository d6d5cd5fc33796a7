"""A change in the history of a value: where, how large, how sure. No I/O, no arithmetic.

What is measured can be a speedup, of which more is better, or a time or size, of which less is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchyard.core.comparison import Interval
from torchyard.core.stored import Metric, Series, SeriesPoint

__all__ = ["ChangeKind", "ChangePoint", "SeriesHistory", "Towards"]

ChangeKind = Literal["step", "drift"]
Towards = Literal["better", "worse"]


@dataclass(frozen=True, kw_only=True)
class ChangePoint:
    """From one level to another, at once (step) or over many runs (drift)."""

    kind: ChangeKind
    position: int
    """Place in the series of the first point at the new level, or at which a drift begins."""
    last: int
    """Place at which a drift has come to its end; `position` for a step."""
    before: SeriesPoint
    after: SeriesPoint
    """The cause lies after the revision of `before`, up to and with the revision of `after`."""
    ratio: float
    """Value after over value before."""
    interval: Interval | None
    p_value: float
    """Chance that a series in which nothing changed shows such a change anywhere."""
    p_adjusted: float | None = None
    """The same among all series that were looked at (Benjamini-Hochberg)."""

    def towards(self, metric: Metric) -> Towards:
        """Whether the change is for the better."""
        return "better" if (self.ratio > 1.0) == (metric == "speedup") else "worse"


@dataclass(frozen=True, kw_only=True)
class SeriesHistory:
    """A series with what changed in it."""

    series: Series
    points: tuple[SeriesPoint, ...]
    """All of them, oldest first; untrusted ones are shown and not judged."""
    changes: tuple[ChangePoint, ...] = ()
    weak: tuple[ChangePoint, ...] = ()
    """Changes that stand alone, but not among as many series as were looked at."""

    @property
    def left_out(self) -> int:
        """How many points were not judged."""
        return sum(point.untrusted for point in self.points)

    @property
    def largest(self) -> ChangePoint | None:
        """The change that moves the value most."""
        return max(
            self.changes, key=lambda change: max(change.ratio, 1.0 / change.ratio), default=None
        )
