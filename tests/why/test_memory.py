"""Allocation sites of both sides are joined by parts."""

from __future__ import annotations

from tests.why.synthetic import rounds, source
from torchyard.core.study import Workload
from torchyard.why.attribution import attribute
from torchyard.why.measurement import Allocation, memory_sites

NORM, UP, ACT = (source(name, "op", line=line) for line, name in enumerate(("norm", "up", "act")))
TIMES = {NORM: 500.0, UP: 500.0, ACT: 500.0}


def allocation(size: int, *sources: object, name: str = "op") -> Allocation:
    return Allocation(name=name, sources=sources, size_bytes=size)  # type: ignore[arg-type]


def test_sites_are_joined_by_part_and_sorted_by_difference() -> None:
    parts = attribute(Workload(suite="models", name="net"), "a", "b", rounds(TIMES, TIMES)).parts
    baseline = [allocation(10, NORM), allocation(20, NORM), allocation(100, UP)]
    candidate = [allocation(100, UP), allocation(7, name=""), allocation(6, name="aten::clone")]
    sites = memory_sites(parts, baseline, candidate)
    assert [(site.name, site.baseline_bytes, site.candidate_bytes) for site in sites] == [
        ("Linear norm: op", 30, 0),
        ("operators without a known source", 0, 7),
        ("aten::clone without a known source", 0, 6),
        ("Linear up: op", 100, 100),
    ]
    assert sum(site.baseline_bytes for site in sites) == 130


def test_an_allocation_outside_of_all_parts_keeps_its_name() -> None:
    (site,) = memory_sites((), [allocation(5, ACT)], [])
    assert site.name == "Linear act: op"
    assert site.difference_bytes == -5
