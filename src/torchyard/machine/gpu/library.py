"""Open the GPU vendors' libraries, and represent each answer or the reason why there is none.

The boundary to NVML: tests put a recorded library here. AMD GPUs need no library: they are files
below `Machine.files`. NVML has more queries than any one card answers, and names change between
releases: every query may end in "Not Supported", which is an answer, too.
"""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from torchyard.machine.system.file_tree import Answer, FileTree

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
