"""Memory at the peak of an iteration: the sites of both sides, joined by parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchyard.why.attribution import part_name
from torchyard.why.model import MemorySite, Part, Source


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Bytes that the operator or kernel `name` allocated and that were live at the peak."""

    name: str
    sources: tuple[Source, ...]
    size_bytes: int

    @classmethod
    def of(cls, fields: list[Any]) -> Allocation:
        """Return the allocation of a worker's answer."""
        name, sources, size_bytes = fields
        return cls(
            name=str(name),
            sources=tuple(Source.of(one) for one in sources),
            size_bytes=int(size_bytes),
        )


def memory_sites(
    parts: Sequence[Part], baseline: Sequence[Allocation], candidate: Sequence[Allocation]
) -> tuple[MemorySite, ...]:
    """Return the sites of both sides, largest difference first.

    Operators of one part are one site, because a kernel that fuses them has only one result.
    """
    names = {source: part.name for part in parts for source in part.sources}
    sizes: dict[str, list[int]] = {}
    sources: dict[str, set[Source]] = {}
    for side, allocations in enumerate((baseline, candidate)):
        for one in allocations:
            known = [names[source] for source in one.sources if source in names]
            name = known[0] if known else _own_name(one)
            sizes.setdefault(name, [0, 0])[side] += one.size_bytes
            sources.setdefault(name, set()).update(one.sources)
    sites = [
        MemorySite(
            name=name,
            sources=tuple(sorted(sources[name])),
            baseline_bytes=own[0],
            candidate_bytes=own[1],
        )
        for name, own in sizes.items()
    ]
    return tuple(
        sorted(sites, key=lambda one: (-abs(one.difference_bytes), -one.baseline_bytes, one.name))
    )


def _own_name(one: Allocation) -> str:
    if one.sources:
        return part_name("operators", one.sources)
    return f"{one.name} without a known source" if one.name else part_name("unattributed", ())
