"""The vendors' libraries as seen from this room: NVML, and the sysfs files of AMD's driver.

The boundary: tests put a recorded library here, nothing above knows the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["GpuLibraries"]


@dataclass(frozen=True, kw_only=True)
class GpuLibraries:
    """What can be asked about GPUs."""

    nvml: Any = None
    """The `pynvml` module (or one that answers like it), already initialised."""
    nvml_because: str = ""
    """Why it is not there."""
