"""List the processes that compute on a GPU, and tell which are ours.

NVML reports process IDs of the host. In a container such an ID may name no process, or one that
cannot be distinguished from our own: its owner is then unknown, not "other".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchyard.machine.gpu.library import ask
from torchyard.machine.system.file_tree import Answer, FileTree
from torchyard.machine.system.tasks import read_task
from torchyard.process.timing_turn import DRIVER_VARIABLE

Owner = Literal["ours", "other", "unknown"]
"""ours: this process or one that it started; unknown: not visible in /proc."""


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """One process with a context on a GPU."""

    pid: int
    kind: Literal["compute", "graphics"]
    memory_bytes: int | None
    name: str
    """Set by the process itself, so untrusted. Empty if not visible."""
    owner: Owner


def read_processes(nvml: Any, handle: Any, files: FileTree) -> Answer[tuple[GpuProcess, ...]]:
    """Return the processes with a context; one with both kinds counts as compute."""
    computing = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", of=(handle,))
    if computing.value is None:
        return Answer(because=computing.because)
    drawing = ask(nvml, "nvmlDeviceGetGraphicsRunningProcesses", of=(handle,))
    processes: dict[int, GpuProcess] = {}
    for process in computing.value:
        processes[int(process.pid)] = _process(process, "compute", files)
    for process in drawing.value or ():
        processes.setdefault(int(process.pid), _process(process, "graphics", files))
    return Answer(value=tuple(processes.values()))


def owner_of(pid: int, files: FileTree, *, environment: Mapping[str, str] = os.environ) -> Owner:
    """Follow the parents up to this process, or to the driver of its sweep, which owns the templates."""
    ours = {os.getpid()}
    if environment.get(DRIVER_VARIABLE, "").isdecimal():
        ours.add(int(environment[DRIVER_VARIABLE]))
    visited: set[int] = set()
    current = pid
    while current not in visited:
        if current in ours:
            return "ours"
        visited.add(current)
        task = read_task(files, current)
        if task is None:
            return "unknown" if current == pid else "other"
        current = task.parent
    return "other"


def _process(raw: Any, kind: Literal["compute", "graphics"], files: FileTree) -> GpuProcess:
    pid = int(raw.pid)
    memory = getattr(raw, "usedGpuMemory", None)
    return GpuProcess(
        pid=pid,
        kind=kind,
        memory_bytes=None if memory is None else int(memory),
        name=files.read(f"proc/{pid}/comm").text.strip(),
        owner=owner_of(pid, files),
    )
