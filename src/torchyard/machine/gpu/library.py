"""NVML, the processes on a GPU, and how the values of a GPU are labelled.

`ask` turns every failure of NVML into a reason. Each field of a reading says how it is shown as a
fact (`shown_as`).
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self

from torchyard.machine.model import Fact
from torchyard.machine.system.file_tree import Answer, FileTree
from torchyard.machine.system.tasks import read_task
from torchyard.process.timing_turn import DRIVER_VARIABLE

NO_PERMISSION: Final = 4
NOTHING_FOUND: Final = 6
FUNCTION_NOT_FOUND: Final = 13
"""NVML error codes, which are part of its interface."""


def ask(nvml: Any, *names: str, of: tuple[Any, ...] = ()) -> Answer[Any]:
    """Call the first function that this library and this driver support.

    `names` are newer and older names of the same query: the newer may be missing in the Python
    package (AttributeError) or in the driver ("Function Not Found").
    """
    because = "no function was given"
    code: int | None = None
    for name in names:
        function = getattr(nvml, name, None)
        if function is None:
            because = f"{name} is not in this release of nvidia-ml-py"
            continue
        try:
            return Answer(value=function(*of))
        except Exception as error:  # noqa: BLE001 - NVML raises its own family of errors
            because = f"NVML reports {str(error).strip().rstrip('.') or type(error).__name__}"
            code = getattr(error, "value", None)
            if code != FUNCTION_NOT_FOUND:
                break
    return Answer(because=because, code=code)


_INSTALL: Final = "nvidia-ml-py is not installed: pip install 'torchyard[nvidia]'"
_DRIVER_SIGNS: Final = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")
"""Files of the kernel driver; the last one is WSL."""


@dataclass(frozen=True, kw_only=True)
class GpuLibraries:
    """GPU libraries. A context manager that shuts NVML down."""

    nvml: Any = None
    """The initialized `pynvml` module, or one with the same interface."""
    nvml_because: str = ""
    """Why it is unavailable."""
    _closed: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    def close(self) -> None:
        """Shut NVML down. Idempotent.

        NVML counts its users, so an extra shutdown would affect other users in this process.
        """
        if self.nvml is None or self._closed.is_set():
            return
        self._closed.set()
        with suppress(Exception):  # a driver that was unloaded needs no shutdown
            self.nvml.nvmlShutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_gpu_libraries(files: FileTree | None = None) -> GpuLibraries:
    """Load and initialize the libraries; never raises. Takes seconds if persistence mode is off.

    NVML describes the running machine, so it is not used for a copy of another machine.
    """
    files = files or FileTree()
    if not files.live:
        return GpuLibraries(nvml_because=f"{files.root} is a copy of a machine, without its GPUs")
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        if any(files.exists(sign) for sign in _DRIVER_SIGNS):
            return GpuLibraries(nvml_because=_INSTALL)
        return GpuLibraries(nvml_because="no NVIDIA driver is loaded")
    try:
        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - NVML raises its own family of errors
        return GpuLibraries(nvml_because=f"NVML cannot be initialized: {error}")
    return GpuLibraries(nvml=nvml)


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
        processes[int(process.pid)] = _read_process(process, "compute", files)
    for process in drawing.value or ():
        processes.setdefault(int(process.pid), _read_process(process, "graphics", files))
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


def _read_process(raw: Any, kind: Literal["compute", "graphics"], files: FileTree) -> GpuProcess:
    pid = int(raw.pid)
    memory = getattr(raw, "usedGpuMemory", None)
    return GpuProcess(
        pid=pid,
        kind=kind,
        memory_bytes=None if memory is None else int(memory),
        name=files.read(f"proc/{pid}/comm").text.strip(),
        owner=owner_of(pid, files),
    )


def shown_as(label: str, form: str | Callable[[Any], str] = "{}") -> Any:
    """Return a dataclass field of type `Answer` that is shown under this label.

    `form` is a format such as `{} MHz`, or a function.
    """
    return field(metadata={"label": label, "form": form if callable(form) else form.format})


def facts_of_fields(section: str, reading: Any) -> list[Fact]:
    """Return the facts of a reading, in the order of its fields."""
    facts: list[Fact] = []
    for item in fields(reading):
        if item.metadata:
            label, answer = item.metadata["label"], getattr(reading, item.name)
            if answer.value is None:
                facts.append(Fact(section=section, name=label, unavailable=answer.because))
            else:
                value = item.metadata["form"](answer.value)
                facts.append(Fact(section=section, name=label, value=value))
    return facts


def on_off(state: bool) -> str:
    """Format a switch."""
    return "on" if state else "off"


def gib(size_bytes: int) -> str:
    """Format an amount of memory."""
    return f"{size_bytes / 2**30:.1f} GiB"


def clock_range(clocks: tuple[int, ...]) -> str:
    """Format a list of clocks by its ends."""
    if len(clocks) == 1:
        return f"{clocks[0]} MHz"
    return f"{len(clocks)} from {min(clocks)} to {max(clocks)} MHz" if clocks else "none"


def process_list(processes: tuple[GpuProcess, ...]) -> str:
    """Format processes with their kind, memory and owner."""
    return ", ".join(_process_text(process) for process in processes) or "none"


def _process_text(process: GpuProcess) -> str:
    memory = "" if process.memory_bytes is None else f", {gib(process.memory_bytes)}"
    whose = {"ours": ", ours", "other": "", "unknown": ", not visible from here"}[process.owner]
    name = f" {process.name}" if process.name else ""
    return f"{process.pid}{name} ({process.kind}{memory}{whose})"
