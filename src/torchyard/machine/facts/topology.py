"""How processors are laid out: sockets, cores, SMT, NUMA nodes, caches."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Fact
from torchyard.core.processor_lists import cpu_list, cpus_of_list
from torchyard.machine.core_choice import Topology
from torchyard.machine.facts.reading import Reader, facts_of, in_words, line_of, or_none
from torchyard.machine.file_tree import FileTree, Found
from torchyard.machine.knob import Machine

__all__ = ["SECTION", "read", "smt"]

SECTION: Final = "topology"
_CPU: Final = "sys/devices/system/cpu"
_NODE: Final = "sys/devices/system/node"

_SMT_WORDS: Final = {
    "on": "on",
    "off": "off, can be switched on",
    "forceoff": "off since boot, cannot be switched on before the next one",
    "notsupported": "the processor has none",
    "notimplemented": "the kernel cannot switch it here",
    "-1": "the kernel never set it up here",
}


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def _nodes_with_processors(files: FileTree) -> dict[int, tuple[int, ...]]:
    """NUMA nodes with their processors; nodes of memory only have none."""
    return {
        node: or_none(files.read(f"{_NODE}/node{node}/cpulist"))
        for node in or_none(files.read(f"{_NODE}/online"))
    }


def smt(files: FileTree) -> Found:
    """The kernel's word for simultaneous multithreading."""
    return line_of(files, f"{_CPU}/smt/control")


def _processors(files: FileTree) -> Found:
    present = or_none(files.read(f"{_CPU}/present"))

    def say(text: str) -> str:
        cpus = cpus_of_list(text)
        missing = tuple(sorted(set(present) - set(cpus)))
        return f"{len(cpus)} online ({cpu_list(cpus)})" + (
            f", {len(missing)} offline ({cpu_list(missing)})" if missing else ""
        )

    return in_words(line_of(files, f"{_CPU}/online"), say)


def _cores(files: FileTree) -> Found:
    physical = Topology.read(files).physical
    if not physical or not files.exists(f"{_CPU}/cpu{physical[0][0]}/topology"):
        return Found(because=f"/{_CPU}/cpu*/topology is missing")
    sockets = {
        line_of(files, f"{_CPU}/cpu{core[0]}/topology/physical_package_id").value
        for core in physical
    }
    threads = max(len(core) for core in physical)
    shown = f"{len(physical)} in {_count(len(sockets), 'socket')}"
    return Found(value=f"{shown}, {_count(threads, 'thread')} per core")


def _smt(files: FileTree) -> Found:
    found = smt(files)
    return in_words(found, lambda text: _SMT_WORDS.get(text, f"{text} threads per core"))


def _nodes(files: FileTree) -> Found:
    every = _nodes_with_processors(files)
    if not every:
        return files.read(f"{_NODE}/online") if not files.exists(_NODE) else Found(because="none")
    shown = ", ".join(
        f"node {node} has {cpu_list(cpus) or 'memory only'}" for node, cpus in every.items()
    )
    return Found(value=f"{len(every)}: {shown}")


def _caches(files: FileTree) -> Found:
    """Those of the first processor that is online: others are the same on nearly all machines."""
    first = next(iter(Topology.read(files).online), 0)
    shown: list[str] = []
    for folder in files.paths(f"{_CPU}/cpu{first}/cache/index*"):
        level, kind, size = (
            line_of(files, f"{folder}/{name}").value for name in ("level", "type", "size")
        )
        if level and size:
            name = f"L{level}" + {"Data": " data", "Instruction": " instruction"}.get(
                kind or "", ""
            )
            shared = len(or_none(files.read(f"{folder}/shared_cpu_list")))
            shown.append(f"{name} {size}" + (f" shared by {shared}" if shared > 1 else ""))
    if not shown:
        return Found(because=f"/{_CPU}/cpu{first}/cache is empty or missing")
    return Found(value=", ".join(shown))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


READERS: Final[dict[str, Reader]] = {
    "processors": _processors,
    "cores": _cores,
    "simultaneous multithreading": _smt,
    "NUMA nodes": _nodes,
    "caches": _caches,
}
