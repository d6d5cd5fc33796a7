"""Read what this machine is and how it is set, without root.

`FACT_SECTIONS` lists the sections. Most of them are tables of readers: to add a fact, add its name
and its reader to a table. A section never raises: what cannot be read is a fact with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from torchyard.machine.facts import clocks, gpus, isolation, load, memory, processor, software
from torchyard.machine.facts.reading import Reader, facts_of
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact

__all__ = ["FACT_SECTIONS", "read_sections"]


def _table(section: str, readers: Mapping[str, Reader]) -> Callable[[Machine], tuple[Fact, ...]]:
    return lambda machine: facts_of(section, readers, machine.files)


FACT_SECTIONS: Final[dict[str, Callable[[Machine], tuple[Fact, ...]]]] = {
    "processor": processor.read_processor,
    "topology": _table("topology", processor.TOPOLOGY),
    "frequency": _table("frequency", clocks.FREQUENCY),
    "idle": _table("idle", clocks.IDLE),
    "isolation": _table("isolation", isolation.ISOLATION),
    "interrupts": _table("interrupts", isolation.INTERRUPTS),
    "memory": _table("memory", memory.MEMORY),
    "kernel": _table("kernel", software.KERNEL),
    "power": _table("power", load.POWER),
    load.LOAD_SECTION: _table(load.LOAD_SECTION, load.LOAD),
    "gpu": gpus.read,
    "software": software.read_software,
}
"""Name -> reader, in the order in which they are shown."""


def read_sections(machine: Machine) -> tuple[Fact, ...]:
    """Return every fact of every section."""
    return tuple(fact for read in FACT_SECTIONS.values() for fact in read(machine))
