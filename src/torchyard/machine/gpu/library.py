"""The vendors' libraries as seen from this room: NVML, and the sysfs files of AMD's driver.

The boundary: tests put a recorded library here, nothing above knows the difference. AMD's GPUs need
no library: they are files below `Machine.files`. Must not know what is asked of the libraries.
"""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from torchyard.machine.file_tree import FileTree

__all__ = ["GpuLibraries", "open_gpu_libraries"]

_INSTALL: Final = "nvidia-ml-py is not installed: pip install 'torchyard[nvidia]'"
_DRIVER_SIGNS: Final = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")
"""What the kernel's driver leaves; the last one is Windows' Linux."""


@dataclass(frozen=True, kw_only=True)
class GpuLibraries:
    """What can be asked about GPUs. A context manager, so that NVML is shut down again."""

    nvml: Any = None
    """The `pynvml` module (or one that answers like it), already initialised."""
    nvml_because: str = ""
    """Why it is not there."""
    _closed: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    def close(self) -> None:
        """Shut NVML down; a second call does nothing.

        NVML counts its users, so one shutdown too many would take it away from somebody else.
        """
        if self.nvml is None or self._closed.is_set():
            return
        self._closed.set()
        with suppress(Exception):  # it is the end: a driver that went away needs no shutdown
            self.nvml.nvmlShutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_gpu_libraries(files: FileTree | None = None) -> GpuLibraries:
    """Load and start what is there; never raises. Takes seconds where persistence mode is off.

    NVML speaks about the running machine, so it is left out when the files are a copy of another.
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
        return GpuLibraries(nvml_because=f"NVML does not answer: {error}")
    return GpuLibraries(nvml=nvml)
