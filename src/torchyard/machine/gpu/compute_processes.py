"""List the processes that compute on a GPU, and tell which are ours.

NVML reports process ids as the host sees them. In a container such an id may name no process, or
none that can be told from our own: it is then unknown, not somebody else's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchyard.machine.gpu.library import Answer, ask
from torchyard.machine.system.file_tree import FileTree
from torchyard.process.timing_turn import DRIVER_VARIABLE, TURN_VARIABLE

__all__ = ["GpuProcess", "Owner", "owner_of", "read_processes"]

Owner = Literal["ours", "other", "unknown"]
"""ours: this process or one that it started; unknown: not visible in /proc."""


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """One process with a context on a GPU."""

    pid: int
    kind: Literal["compute", "graphics"]
    memory_bytes: int | None
    name: str
    """Chosen by the process itself: never to be trusted. Empty when it is not visible."""
    owner: Owner


def read_processes(nvml: Any, handle: Any, files: FileTree) -> Answer[tuple[GpuProcess, ...]]:
    """Everything that holds a context, once each; computing counts more than drawing."""
    computing = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", of=(handle,))
    if computing.value is None:
        return Answer(because=computing.because)
    drawing = ask(nvml, "nvmlDeviceGetGraphicsRunningProcesses", of=(handle,))
    found: dict[int, GpuProcess] = {}
    for process in computing.value:
        found[int(process.pid)] = _process(process, "compute", files)
    for process in drawing.value or ():
        found.setdefault(int(process.pid), _process(process, "graphics", files))
    return Answer(value=tuple(found.values()))


def owner_of(pid: int, files: FileTree, *, environment: Mapping[str, str] = os.environ) -> Owner:
    """Follow the parents up to this process, or to the driver of cells that take turns with it."""
    ours = {os.getpid()}
    if environment.get(TURN_VARIABLE) and environment.get(DRIVER_VARIABLE, "").isdecimal():
        ours.add(int(environment[DRIVER_VARIABLE]))
    seen: set[int] = set()
    current = pid
    while current not in seen:
        if current in ours:
            return "ours"
        seen.add(current)
        stat = files.read(f"proc/{current}/stat").value
        if stat is None:
            return "unknown" if current == pid else "other"
        # The name is in brackets and may hold anything; the parent is the second word behind it.
        words = stat.rpartition(")")[2].split()
        current = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if current <= 0:
            return "other"
    return "other"


def _process(raw: Any, kind: Literal["compute", "graphics"], files: FileTree) -> GpuProcess:
    pid = int(raw.pid)
    memory = getattr(raw, "usedGpuMemory", None)
    return GpuProcess(
        pid=pid,
        kind=kind,
        memory_bytes=None if memory is None else int(memory),
        name=(files.read(f"proc/{pid}/comm").value or "").strip(),
        owner=owner_of(pid, files),
    )
