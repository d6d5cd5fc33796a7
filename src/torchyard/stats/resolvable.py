"""The smallest difference that a comparison of a given length finds.

From the spread between launches and what a launch costs, both as measured. The number of pairs in a
launch is taken as it was, because the spread between launches holds their part already. Knows
nothing of the machine.
"""

from __future__ import annotations

from typing import Final

from torchyard.core.audit import Resolvable, Spread
from torchyard.core.comparison import Interval
from torchyard.stats.planning import minimum_detectable

__all__ = ["MINUTES", "resolvable_in"]

MINUTES: Final = tuple(range(1, 31))
_FEWEST_LAUNCHES: Final = 2


def resolvable_in(
    minutes: float, between: Spread, *, launch_s: float, alpha: float = 0.05
) -> Resolvable:
    """For a comparison whose launches take `launch_s` seconds each, starting included."""
    if not launch_s > 0.0:
        raise ValueError(f"a launch takes time: {launch_s=}")
    launches = int(60.0 * minutes / launch_s)
    if between.sd is None or launches < _FEWEST_LAUNCHES:
        return Resolvable(minutes=minutes, launches=launches, difference=None)
    smallest = minimum_detectable(between.sd, launches, alpha=alpha)
    interval = None
    if smallest is not None and between.interval is not None:
        interval = Interval(
            low=smallest * between.interval.low / between.sd,
            high=smallest * between.interval.high / between.sd,
            confidence=between.interval.confidence,
        )
    return Resolvable(minutes=minutes, launches=launches, difference=smallest, interval=interval)
