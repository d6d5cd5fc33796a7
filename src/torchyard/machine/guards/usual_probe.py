"""What the frequency probe usually takes, and from where on the core counts as slowed down.

The level is the median over the launch so far, for each variant by itself: a variant can slow the
core by what it computes (wide vector instructions lower the clock of some processors for a while),
and that belongs to its time. It begins anew with each launch, because the two sides of a pair run at
the same clock as long as it does not change within the launch.

The limit follows the machine (`benchmarks/guard_cost.py`). On a virtual machine of two Neoverse-N1
cores under a load of 3 to 7 the slower probe of a block was at most 1.5 % above the level in 790
blocks, and at most 0.6 % in 99 of 100: there a clock that falls by 5 % is seen, and waiting is not
taken for it. On one of 16 cores of a shared Xeon the clock
goes up and down by 10 % within milliseconds. Beside 24 to 55 of 100 blocks a probe was 5 % slow, and
without those blocks times scattered hardly less (17.1 and 15.6 %, 11.3 and 8.0 %, 8.2 and 7.5 %, 11.9
and 11.9 % with four workloads); by the limit that follows, 2 to 5 of 100 are dirty.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import replace
from statistics import median
from typing import Final

from torchyard.core.block import GuardReading

__all__ = ["UsualProbe"]

SMALLEST_LIMIT: Final = 0.05
"""Three times the most that was seen on a steady clock, and two steps of 100 MHz at 4 GHz."""
SPREADS: Final = 5.0
"""Median absolute deviations above the median; 3.4 standard deviations of a normal distribution."""
FEWEST: Final = 10
"""Blocks before the machine's own spread is known; until then the probe is recorded only."""
_REMEMBERED: Final = 200


class UsualProbe:
    """Learns from one block after the other, for a whole session."""

    def __init__(self) -> None:
        self._levels: dict[str, list[int]] = {}
        self._strays: deque[float] = deque(maxlen=_REMEMBERED)

    def begin_launch(self) -> None:
        """Forget the levels, not how much this machine strays."""
        self._levels.clear()

    def beside(self, variant: str, reading: GuardReading) -> GuardReading:
        """The reading with what is usual by now, and with the limit once there is one."""
        probes = [
            probe
            for probe in (reading.probe_before_ns, reading.probe_after_ns)
            if probe is not None
        ]
        if not probes:
            return reading
        seen = self._levels.setdefault(variant, [])
        insort(seen, min(probes))
        usual_ns = seen[(len(seen) - 1) // 2]
        limit = self._limit()
        self._strays.append(max(probes) / usual_ns)
        return replace(
            reading,
            probe_usual_ns=usual_ns,
            probe_limit_ns=None if limit is None else round(limit * usual_ns),
        )

    def _limit(self) -> float | None:
        """As a multiple of the level."""
        if len(self._strays) < FEWEST:
            return None
        centre = median(self._strays)
        spread = median(abs(stray - centre) for stray in self._strays)
        return max(1 + SMALLEST_LIMIT, centre + SPREADS * spread)
