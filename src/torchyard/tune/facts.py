"""What decides whether a choice makes sense here: machine, target and workload, as plain values.

Read once per race. Knows nothing of choices.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchyard.core.variant import Variant
from torchyard.core.workload import Workload

__all__ = ["Place", "place_of"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a race is run, and of what."""

    architecture: str = "x86_64"
    cores: int = 1
    """Logical ones that this process may use."""
    physical_cores: int = 1
    nodes: tuple[tuple[int, ...], ...] = ()
    """Cores of each NUMA node that may be used."""
    glibc: str = ""
    openmp: tuple[str, ...] = ()
    """`gnu`, `intel`, `llvm`: what the target's torch has loaded."""
    allocators: tuple[str, ...] = ()
    """Libraries that the target loads by itself."""
    device: str = "cpu"
    """Its kind, without a number."""
    mode: str = "inference"
    backend: str = "eager"
    goal: str = "latency"


def place_of(
    workload: Workload, default: Variant, hello: Mapping[str, Any], *, goal: str = "latency"
) -> Place:
    """The facts; `hello` is what a worker of the target said of itself."""
    cores = sorted(os.sched_getaffinity(0))
    names = [str(name) for name in hello.get("openmp") or ()]
    return Place(
        architecture=platform.machine(),
        cores=len(cores),
        physical_cores=_physical(cores),
        nodes=_nodes(cores),
        glibc=platform.libc_ver()[1] if platform.libc_ver()[0] == "glibc" else "",
        openmp=tuple(sorted({kind for name in names for kind in _openmp_kinds(name)})),
        allocators=tuple(str(name) for name in hello.get("allocators") or ()),
        device=workload.device.partition(":")[0],
        mode=workload.mode,
        backend=default.backend.partition(":")[0],
        goal=goal,
    )


def _openmp_kinds(library: str) -> tuple[str, ...]:
    if library.startswith("libgomp"):
        return ("gnu",)
    if library.startswith("libiomp"):
        return ("intel",)
    return ("llvm",) if library.startswith("libomp") else ()


def _physical(cores: list[int]) -> int:
    """Cores that are not threads of one another; all of them where the kernel does not say."""
    groups = set()
    for core in cores:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        try:
            groups.add(path.read_text(encoding="ascii").strip())
        except OSError:
            return len(cores)
    return max(1, len(groups))


def _nodes(cores: list[int]) -> tuple[tuple[int, ...], ...]:
    found = []
    for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        inside = tuple(core for core in cores if (node / f"cpu{core}").exists())
        if inside:
            found.append(inside)
    return tuple(found)
