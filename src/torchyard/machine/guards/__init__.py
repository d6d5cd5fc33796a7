"""Guards: what makes a measured block untrustworthy, read without root and cheaply.

Each module beside this one opens one reader of the machine; `READERS` lists them. What concerns the
worker's own process (run-queue wait, steal, switches, faults, the frequency probe) is read by the
worker. `watching.py` reads around a block, `judging.py` says whether the block is clean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torchyard.machine.guards import cooling, pressure, swapping, temperature, throttling
from torchyard.machine.guards.reader import Reader
from torchyard.machine.knob import Machine

__all__ = ["READERS"]

READERS: Final[tuple[Callable[[Machine], Reader], ...]] = (
    swapping.open_reader,
    pressure.open_reader,
    throttling.open_reader,
    cooling.open_reader,
    temperature.open_reader,
)
