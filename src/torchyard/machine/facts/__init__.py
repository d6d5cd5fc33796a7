"""Read what this machine is and how it is set, without root.

`FACT_SECTIONS` lists the sections. To add one, write a function `read_...(machine) -> tuple[Fact,
...]` with the name of its section, and add it to the list. A section never raises: what cannot be
read is a fact with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torchyard.machine.facts import clocks, gpus, isolation, load, memory, processor, software
from torchyard.machine.facts import clocks as idle
from torchyard.machine.facts import isolation as interrupts
from torchyard.machine.facts import load as power
from torchyard.machine.facts import processor as topology
from torchyard.machine.facts import software as kernel
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact

__all__ = ["FACT_SECTIONS", "read_sections"]

FACT_SECTIONS: Final[dict[str, Callable[[Machine], tuple[Fact, ...]]]] = {
    processor.PROCESSOR_SECTION: processor.read_processor,
    topology.TOPOLOGY_SECTION: topology.read_topology,
    clocks.FREQUENCY_SECTION: clocks.read_frequency,
    idle.IDLE_SECTION: idle.read_idle,
    isolation.ISOLATION_SECTION: isolation.read_isolation,
    interrupts.INTERRUPTS_SECTION: interrupts.read_interrupts,
    memory.SECTION: memory.read,
    kernel.KERNEL_SECTION: kernel.read_kernel,
    power.POWER_SECTION: power.read_power,
    load.LOAD_SECTION: load.read_load,
    "gpu": gpus.read,
    software.SOFTWARE_SECTION: software.read_software,
}
"""Name -> reader, in the order in which they are shown."""


def read_sections(machine: Machine) -> tuple[Fact, ...]:
    """Every fact of every section."""
    return tuple(fact for read in FACT_SECTIONS.values() for fact in read(machine))
