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
from torchyard.machine.facts.reading import Reader
from torchyard.machine.model import UNAVAILABLE
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
    "frequency driver": clocks.driver,
    "governor": clocks.governor,
    "turbo off": clocks.turbo_off,
    "energy preference": clocks.preference,
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
