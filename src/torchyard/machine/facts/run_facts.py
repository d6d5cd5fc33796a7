"""Select the facts that are recorded with every run because they explain a number later.

A selection of the readers of `facts` that is cheap enough for every start: no program is run, and a
fact costs one small file. What cannot be read is recorded as "unavailable, because ...", never as a
blank or a zero.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from torchyard.core.cpu_lists import cpus_of_list
from torchyard.machine.facts import clocks, isolation, load, memory, processor, software
from torchyard.machine.facts import processor as topology
from torchyard.machine.facts.reading import Reader
from torchyard.machine.system.file_tree import FileTree, Found

__all__ = ["RUN_FACTS", "read_facts"]


def _cores(files: FileTree) -> Found:
    """How many processors this process may use."""
    found = isolation.allowed(files)
    if found.value is None:
        return found
    return Found(value=str(len(cpus_of_list(found.value))))


RUN_FACTS: Final[dict[str, Reader]] = {
    "architecture": processor.architecture,
    "kernel": software.release,
    "cpu": processor.model,
    "cores": _cores,
    "memory": memory.total,
    "load": load.load_averages,
    "frequency driver": clocks.driver,
    "governor": clocks.governor,
    "turbo off": clocks.turbo_off,
    "energy preference": clocks.preference,
    "smt": topology.smt,
    "set apart": isolation.set_apart,
    "processors that limits leave": isolation.quota_processors,
    "transparent huge pages": memory.huge_pages,
    "NUMA balancing": memory.numa_balancing,
    "address randomisation": memory.randomisation,
    "virtualisation": software.virtualisation,
    "clock source": software.clock_source,
}
"""Name in the record of a run -> reader. Names stay: older runs are compared by them."""


def read_facts(root: Path = Path("/")) -> dict[str, str]:
    """Facts that belong beside every number."""
    files = FileTree(root)
    return {name: _text(reader(files)) for name, reader in RUN_FACTS.items()}


def _text(found: Found) -> str:
    """The value, or the reason without the folders of its file: a record is read in a table."""
    if found.value:
        return found.value
    return f"unavailable, because {(found.because or 'it is empty').rpartition('/')[2]}"
