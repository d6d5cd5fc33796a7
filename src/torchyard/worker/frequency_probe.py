"""How fast the core is right now: a fixed piece of work, timed. Tells a fallen clock without root.

The work is one SHA-256 of 16 KiB: each round needs the result of the one before, so it runs at the
speed of the core's clock whatever memory and caches are doing, and it is one call into C. Beside
other busy processes its fastest of 8 tries scattered less than that of CRC-32, Adler-32, `pow`,
PBKDF2, a sum of integers and a loop in Python. The fastest try counts, because neither a preemption
nor a cold cache can make one faster. A thread that shares the core does slow it; that disturbs a
block as much as a lower clock does.
"""

import hashlib
import time
from typing import Callable, Optional

WORK = bytes(range(256)) * 64
TRIES = 8
SECOND_LOOK = 1.04
"""Slower by this factor than ever before, all tries are made once more: an interrupt can take longer
than the tries together, a fallen clock stays for longer."""


def hash_once() -> None:
    """The fixed work."""
    hashlib.sha256(WORK).digest()


class FrequencyProbe:
    """Times the work; remembers the fastest try of this process."""

    def __init__(
        self,
        work: Callable[[], None] = hash_once,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._work = work
        self._clock = clock
        self._fastest_ns: Optional[int] = None

    def read(self) -> int:
        """Nanoseconds that the work takes now."""
        found = self._best()
        if self._fastest_ns is None or found > SECOND_LOOK * self._fastest_ns:
            found = min(found, self._best())
        if self._fastest_ns is None or found < self._fastest_ns:
            self._fastest_ns = found
        return found

    def _best(self) -> int:
        work, clock = self._work, self._clock
        best = 0
        for _ in range(TRIES):
            start = clock()
            work()
            duration = clock() - start
            if not best or duration < best:
                best = duration
        return best
