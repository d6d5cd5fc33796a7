"""Read what this machine is and how it is set, without root.

`FACT_SECTIONS` lists the sections. Most of them are tables of readers: to add a fact, add its name
and its reader to a table. A section never raises: what cannot be read is a fact with a reason.
`RUN_FACTS` is the selection that is recorded with every run, cheap enough for every start: no program
is run, and a fact costs one small file. `read_gpus` reads all GPUs of all vendors at one moment; `advice` judges that reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.cpu_lists import cpus_of_list
from torchyard.machine.facts import isolation, load, memory, processor, software
from torchyard.machine.facts.reading import Reader, facts_of
from torchyard.machine.gpu.amd import AmdGpu, read_amd
from torchyard.machine.gpu.library import facts_of_fields
from torchyard.machine.gpu.nvidia import NvidiaGpu, read_nvidia
from torchyard.machine.knob import Machine
from torchyard.machine.model import UNAVAILABLE, Fact
from torchyard.machine.system.file_tree import FileTree, Reading


def _cores(files: FileTree) -> Reading:
    """Return the number of CPUs this process may use."""
    reading = isolation.allowed(files)
    if reading.value is None:
        return reading
    return Reading(value=str(len(cpus_of_list(reading.value))))


RUN_FACTS: Final[dict[str, Reader]] = {
    "architecture": processor.architecture,
    "kernel": software.release,
    "cpu": processor.model,
    "cores": _cores,
    "memory": memory.total,
    "load": load.load_averages,
    "frequency driver": processor.frequency_driver,
    "governor": processor.governor,
    "turbo off": processor.turbo_off,
    "energy preference": processor.energy_preference,
    "smt": processor.smt,
    "set apart": isolation.isolated_text,
    "processors that limits leave": isolation.quota_processors,
    "transparent huge pages": memory.huge_pages,
    "NUMA balancing": memory.numa_balancing,
    "address randomisation": memory.randomisation,
    "virtualisation": software.virtualisation,
    "clock source": software.clock_source,
}
"""Name in the record of a run -> reader. Names are fixed: runs are compared by them."""


def read_facts(root: Path = Path("/")) -> dict[str, str]:
    """Return the facts to record with every run."""
    files = FileTree(root)
    return {name: _text(reader(files)) for name, reader in RUN_FACTS.items()}


def _text(reading: Reading) -> str:
    """Return the value, or the reason with only the file name of its path."""
    if reading.value:
        return reading.value
    return UNAVAILABLE + (reading.because or "it is empty").rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class GpuView:
    """Readings of all GPUs, and why NVIDIA GPUs could not be queried."""

    nvidia: tuple[NvidiaGpu, ...] = ()
    nvidia_because: str = ""
    amd: tuple[AmdGpu, ...] = ()


def read_gpus(machine: Machine) -> GpuView:
    """Read the GPUs of all vendors; never raises."""
    amd = read_amd(machine.files)
    if machine.gpus is None:
        return GpuView(nvidia_because="NVML is not used here", amd=amd)
    if machine.gpus.nvml is None:
        return GpuView(nvidia_because=machine.gpus.nvml_because, amd=amd)
    nvidia = read_nvidia(machine.gpus.nvml, machine.files)
    return GpuView(nvidia=nvidia.value or (), nvidia_because=nvidia.because, amd=amd)


def gpu_facts(view: GpuView) -> tuple[Fact, ...]:
    """Return all GPU facts of a reading; one fact with the reason if there is no GPU."""
    facts: list[Fact] = []
    for number, gpu in enumerate((*view.nvidia, *view.amd)):
        facts += facts_of_fields(f"gpu {number}", gpu)
    if not view.nvidia and (view.nvidia_because or not view.amd):
        because = view.nvidia_because or "the driver lists no GPU"
        facts.append(Fact(section="gpu", name="NVIDIA GPUs", unavailable=because))
    return tuple(facts)


def _table(section: str, readers: Mapping[str, Reader]) -> Callable[[Machine], tuple[Fact, ...]]:
    return lambda machine: facts_of(section, readers, machine.files)


FACT_SECTIONS: Final[dict[str, Callable[[Machine], tuple[Fact, ...]]]] = {
    "processor": processor.read_processor,
    "topology": _table("topology", processor.TOPOLOGY),
    "frequency": _table("frequency", processor.FREQUENCY),
    "idle": _table("idle", processor.IDLE),
    "isolation": _table("isolation", isolation.ISOLATION),
    "interrupts": _table("interrupts", isolation.INTERRUPTS),
    "memory": _table("memory", memory.MEMORY),
    "kernel": _table("kernel", software.KERNEL),
    "power": _table("power", load.POWER),
    load.LOAD_SECTION: _table(load.LOAD_SECTION, load.LOAD),
    "gpu": lambda machine: gpu_facts(read_gpus(machine)),
    "software": software.read_software,
}
"""Name -> reader, in the order in which they are shown."""


def read_sections(machine: Machine) -> tuple[Fact, ...]:
    """Return every fact of every section."""
    return tuple(fact for read in FACT_SECTIONS.values() for fact in read(machine))
