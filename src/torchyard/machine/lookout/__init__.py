"""The lookout: what else happens on the machine while it is measured. Reads only, needs no root.

Unlike a guard, which judges one block, it samples the whole time and names who was there. Adding a
source: a module with a class, a line here, its kinds in `kinds.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torchyard.machine.lookout.interrupts import InterruptCounts, SoftInterruptCounts
from torchyard.machine.lookout.page_moves import PageMoves
from torchyard.machine.lookout.pressure import PressureTime
from torchyard.machine.lookout.processes import ProcessTime
from torchyard.machine.lookout.processor_time import ProcessorTime
from torchyard.machine.lookout.source import Source

__all__ = ["SOURCES"]

SOURCES: Final[tuple[Callable[[], Source], ...]] = (
    ProcessTime,
    ProcessorTime,
    InterruptCounts,
    SoftInterruptCounts,
    PressureTime,
    PageMoves,
)
