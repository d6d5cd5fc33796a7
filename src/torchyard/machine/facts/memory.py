"""Memory facts: free memory, huge pages, swap, NUMA balancing, address-space randomization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchyard.machine.facts.reading import (
    Reader,
    as_reading,
    file_reader,
    gib,
    line_reader,
    switch_reader,
)
from torchyard.machine.system.file_tree import FileTree, Reading, unescaped

_INFO: Final = "proc/meminfo"
_HUGE: Final = "sys/kernel/mm/transparent_hugepage"


def amount_kib(files: FileTree, name: str) -> int | None:
    """Return an amount of meminfo, or None."""
    words = files.read(_INFO).fields.get(name, "").split()
    return int(words[0]) if words and words[0].isdecimal() else None


@dataclass(frozen=True, kw_only=True)
class SwapArea:
    """One swap area."""

    name: str
    """As in /proc/swaps: blanks as \\040."""
    size_kib: int = 0
    used_kib: int = 0
    priority: int

    @property
    def path(self) -> str:
        """Path with blanks."""
        return unescaped(self.name)


def swap_areas(table: str) -> list[SwapArea]:
    """Return the areas of /proc/swaps, highest priority first: the order of their activation."""
    areas: list[SwapArea] = []
    for line in table.splitlines()[1:]:
        match line.split():
            case [name, _, size, used, priority] if priority.lstrip("-").isdigit():
                sizes = {"size_kib": int(size), "used_kib": int(used)}
                areas.append(SwapArea(name=name, priority=int(priority), **sizes))
    return sorted(areas, key=lambda area: -area.priority)


def _amount(name: str) -> Reader:
    def read_amount(files: FileTree) -> Reading:
        kib = amount_kib(files, name)
        text = None if kib is None else gib(kib)
        return as_reading(text, f"meminfo has no {name}")

    return read_amount


total: Final = _amount("MemTotal")
huge_pages: Final = line_reader(f"{_HUGE}/enabled")
"""Reader of the modes of transparent huge pages, the present one in brackets."""
_NUMA_BALANCING: Final = "proc/sys/kernel/numa_balancing"
numa_balancing: Final = line_reader(_NUMA_BALANCING)
_RANDOMIZATION: Final = "proc/sys/kernel/randomize_va_space"
randomisation: Final = line_reader(_RANDOMIZATION)
"""Reader of the state of address space layout randomization."""


def _swap(files: FileTree) -> Reading:
    reading = files.read("proc/swaps")
    if reading.value is None:
        return reading
    shown = (
        f"{area.name} {gib(area.size_kib)}, {gib(area.used_kib)} used"
        for area in swap_areas(reading.value)
    )
    return Reading(value="; ".join(shown) or "none")


def _reserved(files: FileTree) -> Reading:
    reading = files.read(_INFO)
    fields = reading.fields
    if "HugePages_Total" not in fields:
        return Reading(because=reading.because or "meminfo has no HugePages_Total")
    return Reading(value=f"{fields['HugePages_Total']} of {fields.get('Hugepagesize', '?')}")


MEMORY: Final[dict[str, Reader]] = {
    "total": total,
    "available": _amount("MemAvailable"),
    "swap": _swap,
    "swappiness": line_reader("proc/sys/vm/swappiness"),
    "transparent huge pages": huge_pages,
    "huge page defragmentation": line_reader(f"{_HUGE}/defrag"),
    "reserved huge pages": _reserved,
    "same-page merging": switch_reader("sys/kernel/mm/ksm/run"),
    "NUMA balancing": line_reader(
        _NUMA_BALANCING, lambda text: {"0": "off", "1": "on"}.get(text, f"on ({text})")
    ),
    "address space randomization": file_reader(
        _RANDOMIZATION, {"0": "off", "1": "without the heap", "2": "full"}
    ),
}
