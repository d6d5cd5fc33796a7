"""Read what this machine is and how it is set, without root.

`FACT_SECTIONS` lists the sections. To add one, write a function `read_...(machine) -> tuple[Fact,
...]` with the name of its section, and add it to the list. A section never raises: what cannot be
read is a fact with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torchyard.machine.facts import clocks, gpus, isolation, load, memory, processor, software
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact

__all__ = ["FACT_SECTIONS", "read_sections"]

FACT_SECTIONS: Final[dict[str, Callable[[Machine], tuple[Fact, ...]]]] = {
    processor.PROCESSOR_SECTION: processor.read_processor,
    processor.TOPOLOGY_SECTION: processor.read_topology,
    clocks.FREQUENCY_SECTION: clocks.read_frequency,
    clocks.IDLE_SECTION: clocks.read_idle,
    isolation.ISOLATION_SECTION: isolation.read_isolation,
    isolation.INTERRUPTS_SECTION: isolation.read_interrupts,
    memory.SECTION: memory.read,
    software.KERNEL_SECTION: software.read_kernel,
    load.POWER_SECTION: load.read_power,
    load.LOAD_SECTION: load.read_load,
    "gpu": gpus.read,
    software.SOFTWARE_SECTION: software.read_software,
}
"""Name -> reader, in the order in which they are shown."""


def read_sections(machine: Machine) -> tuple[Fact, ...]:
    """Return every fact of every section."""
    return tuple(fact for read in FACT_SECTIONS.values() for fact in read(machine))
