"""How processors are laid out: sockets, cores, SMT, NUMA nodes, caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Fact
from torchyard.machine.facts.reading import Reader, facts_of, in_words, line_of, or_none
from torchyard.machine.file_tree import FileTree, Found, cpu_list, cpus_of_list
from torchyard.machine.knob import Machine

__all__ = ["SECTION", "Core", "cores", "nodes", "online", "read", "smt", "smt_active"]

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


@dataclass(frozen=True, kw_only=True)
class Core:
    """One core that has a processor online."""

    socket: str
    processors: tuple[int, ...]
    """Its hardware threads that are online."""


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def online(files: FileTree) -> tuple[int, ...]:
    """Processors that are online; nothing when that cannot be read."""
    return or_none(files.read(f"{_CPU}/online"))


def cores(files: FileTree) -> tuple[Core, ...]:
    """Cores in the order of their first processor; those without a topology file are left out."""
    found: dict[tuple[str, str], list[int]] = {}
    for cpu in online(files):
        folder = f"{_CPU}/cpu{cpu}/topology"
        siblings = files.read(f"{folder}/thread_siblings_list").value
        if siblings is not None:
            socket = line_of(files, f"{folder}/physical_package_id").value or "0"
            found.setdefault((socket, siblings), []).append(cpu)
    return tuple(Core(socket=socket, processors=tuple(cpus)) for (socket, _), cpus in found.items())


def nodes(files: FileTree) -> dict[int, tuple[int, ...]]:
    """NUMA nodes with their processors; nodes of memory only have none."""
    return {
        node: or_none(files.read(f"{_NODE}/node{node}/cpulist"))
        for node in or_none(files.read(f"{_NODE}/online"))
    }


def smt(files: FileTree) -> Found:
    """The kernel's word for simultaneous multithreading."""
    return line_of(files, f"{_CPU}/smt/control")


def smt_active(files: FileTree) -> bool:
    """Whether two processors that are online share a core."""
    said = line_of(files, f"{_CPU}/smt/active").value
    return said == "1" if said else any(len(core.processors) > 1 for core in cores(files))


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
    every = cores(files)
    if not every:
        return Found(because=f"/{_CPU}/cpu*/topology has no list of siblings")
    sockets = len({core.socket for core in every})
    threads = max(len(core.processors) for core in every)
    return Found(
        value=f"{len(every)} in {_count(sockets, 'socket')}, {_count(threads, 'thread')} per core"
    )


def _smt(files: FileTree) -> Found:
    found = smt(files)
    return in_words(found, lambda text: _SMT_WORDS.get(text, f"{text} threads per core"))


def _nodes(files: FileTree) -> Found:
    every = nodes(files)
    if not every:
        return files.read(f"{_NODE}/online") if not files.exists(_NODE) else Found(because="none")
    shown = ", ".join(
        f"node {node} has {cpu_list(cpus) or 'memory only'}" for node, cpus in every.items()
    )
    return Found(value=f"{len(every)}: {shown}")


def _caches(files: FileTree) -> Found:
    """Those of the first processor that is online: others are the same on nearly all machines."""
    first = next(iter(online(files)), 0)
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
