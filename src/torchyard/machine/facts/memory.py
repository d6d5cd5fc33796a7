"""Memory facts: free memory, huge pages, swap, NUMA balancing, address-space randomization."""

from __future__ import annotations

from typing import Final

from torchyard.machine.facts.reading import (
    Reader,
    facts_of,
    fields_of,
    gib,
    in_words,
    line_of,
    of_file,
)
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact
from torchyard.machine.system.file_tree import FileTree, Found

__all__ = [
    "SECTION",
    "amount_kib",
    "huge_pages",
    "numa_balancing",
    "randomisation",
    "read",
    "swaps",
    "total",
]

SECTION: Final = "memory"
_INFO: Final = "proc/meminfo"
_HUGE: Final = "sys/kernel/mm/transparent_hugepage"


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def amount_kib(files: FileTree, name: str) -> int | None:
    """An amount of meminfo; None when it is not there."""
    words = fields_of(files.read(_INFO)).get(name, "").split()
    return int(words[0]) if words and words[0].isdecimal() else None


def total(files: FileTree) -> Found:
    """All memory that the kernel manages."""
    return _amount("MemTotal")(files)


def huge_pages(files: FileTree) -> Found:
    """When the kernel backs memory with huge pages by itself; the choice is in brackets."""
    return line_of(files, f"{_HUGE}/enabled")


def numa_balancing(files: FileTree) -> Found:
    """Whether the kernel moves pages between nodes by itself."""
    return line_of(files, "proc/sys/kernel/numa_balancing")


def randomisation(files: FileTree) -> Found:
    """How much of the address space of a new process is drawn at random."""
    return line_of(files, "proc/sys/kernel/randomize_va_space")


def swaps(files: FileTree) -> tuple[tuple[str, int, int], ...]:
    """(name, size, used) of every swap, in KiB."""
    found: list[tuple[str, int, int]] = []
    for line in (files.read("proc/swaps").value or "").splitlines()[1:]:
        match line.split():
            case [name, _, size, used, *_] if size.isdecimal() and used.isdecimal():
                found.append((name, int(size), int(used)))
    return tuple(found)


def _amount(name: str) -> Reader:
    def read_amount(files: FileTree) -> Found:
        kib = amount_kib(files, name)
        return Found(value=gib(kib)) if kib is not None else Found(because=f"meminfo has no {name}")

    return read_amount


def _swap(files: FileTree) -> Found:
    found = files.read("proc/swaps")
    if found.value is None:
        return found
    every = swaps(files)
    shown = (f"{name} {gib(size)}, {gib(used)} used" for name, size, used in every)
    return Found(value="; ".join(shown) or "none")


def _reserved(files: FileTree) -> Found:
    found = files.read(_INFO)
    fields = fields_of(found)
    if "HugePages_Total" not in fields:
        return Found(because=found.because or "meminfo has no HugePages_Total")
    return Found(value=f"{fields['HugePages_Total']} of {fields.get('Hugepagesize', '?')}")


READERS: Final[dict[str, Reader]] = {
    "total": total,
    "available": _amount("MemAvailable"),
    "swap": _swap,
    "swappiness": of_file("proc/sys/vm/swappiness"),
    "transparent huge pages": huge_pages,
    "huge pages on a fault": of_file(f"{_HUGE}/defrag"),
    "huge pages reserved": _reserved,
    "same-page merging": lambda files: in_words(
        line_of(files, "sys/kernel/mm/ksm/run"),
        lambda text: {"0": "off", "1": "on"}.get(text, text),
    ),
    "NUMA balancing": lambda files: in_words(
        numa_balancing(files), lambda text: {"0": "off", "1": "on"}.get(text, f"on ({text})")
    ),
    "address randomisation": of_file(
        "proc/sys/kernel/randomize_va_space", {"0": "off", "1": "without the heap", "2": "full"}
    ),
}
