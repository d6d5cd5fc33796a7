"""The machine around one block after the other: reads before, reads after, says what changed.

Knows nothing of what the numbers mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from torchyard.machine.guards import READERS
from torchyard.machine.guards.reader import Number, Reader
from torchyard.machine.knob import Machine

__all__ = ["SLOW_READING_S", "Watch"]

SLOW_READING_S: Final = 0.001
"""A reader that takes longer is left out. Sensors behind firmware can take milliseconds; a block
lasts about 100 of them."""
_TRIES: Final = 3


class Watch:
    """Reads around blocks. Use as a context manager, or close it: it holds files open."""

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        readers: Sequence[Callable[[Machine], Reader]] = READERS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.states: dict[str, str] = {}
        """Each reader by its name, and why it is unavailable: empty when it is not."""
        self._clock = clock
        self._readers: list[Reader] = []
        self._before: list[Number | None] = []
        self._started_ns = 0
        for open_reader in readers:
            reader = open_reader(machine if machine is not None else Machine())
            because = reader.unavailable or self._too_slow(reader)
            self.states[reader.name] = because
            if because:
                reader.close()
            else:
                self._readers.append(reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def begin(self) -> None:
        """Just before a block."""
        self._started_ns = self._clock()
        self._before = [reader.read() if reader.grows else None for reader in self._readers]

    def end(self) -> dict[str, Number | None]:
        """Just after it: fields of `GuardReading`."""
        seen: dict[str, Number | None] = {"watched_ns": self._clock() - self._started_ns}
        for reader, before in zip(self._readers, self._before, strict=True):
            after = reader.read()
            if reader.grows:
                after = None if after is None or before is None else max(0, after - before)
            seen[reader.reading] = after
        return seen

    def close(self) -> None:
        """Close what the readers hold open."""
        for reader in self._readers:
            reader.close()

    def _too_slow(self, reader: Reader) -> str:
        durations_ns = []
        for _ in range(_TRIES):
            started_ns = self._clock()
            reader.read()
            durations_ns.append(self._clock() - started_ns)
        fastest_s = min(durations_ns) / 1e9
        return f"reading it takes {fastest_s * 1e3:.1f} ms" if fastest_s > SLOW_READING_S else ""
