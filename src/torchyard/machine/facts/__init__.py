"""What this machine is and how it is set, read without root.

Adding a section: a module with `SECTION` and `read(machine) -> tuple[Fact, ...]`, and a line here.
A section never raises: what cannot be read is a fact with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torchyard.core.machine import Fact
from torchyard.machine.facts import (
    frequency,
    gpus,
    idle,
    interrupts,
    isolation,
    kernel,
    load,
    memory,
    power,
    processor,
    software,
    topology,
)
from torchyard.machine.knob import Machine

__all__ = ["FACT_SECTIONS", "read_sections"]

FACT_SECTIONS: Final[dict[str, Callable[[Machine], tuple[Fact, ...]]]] = {
    processor.SECTION: processor.read,
    topology.SECTION: topology.read,
    frequency.SECTION: frequency.read,
    idle.SECTION: idle.read,
    isolation.SECTION: isolation.read,
    interrupts.SECTION: interrupts.read,
    memory.SECTION: memory.read,
    kernel.SECTION: kernel.read,
    power.SECTION: power.read,
    load.SECTION: load.read,
    "gpu": gpus.read,
    software.SECTION: software.read,
}
"""Name -> reader, in the order in which they are shown."""


def read_sections(machine: Machine) -> tuple[Fact, ...]:
    """Every fact of every section."""
    return tuple(fact for read in FACT_SECTIONS.values() for fact in read(machine))
