"""The GPU's clock and why it is held down, read through NVML between blocks. No root needed.

nvidia-ml-py is optional: without it the clock is unavailable, with the reason said once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["GpuClock", "GpuReading"]

_REASONS: Final[dict[int, str]] = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """The streaming multiprocessors' clock and the reasons that hold it."""

    sm_clock_mhz: int | None
    throttle_reasons: tuple[str, ...] = ()


class GpuClock:
    """Reads one GPU; `why_not` says why when it cannot."""

    def __init__(self, device: str) -> None:
        self.why_not = ""
        self._handle: Any = None
        self._nvml: Any = None
        if not device.startswith("cuda"):
            self.why_not = "the device is not a CUDA device"
            return
        _, _, index = device.partition(":")
        number = _physical_index(int(index or 0), os.environ.get("CUDA_VISIBLE_DEVICES"))
        if number is None:
            self.why_not = "CUDA_VISIBLE_DEVICES does not name GPUs by number"
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        except ImportError:
            self.why_not = "nvidia-ml-py is not installed: pip install 'torchyard[nvidia]'"
        except Exception as error:  # noqa: BLE001 - NVML raises its own family of errors
            self.why_not = f"NVML does not answer: {error}"

    def read(self) -> GpuReading | None:
        """The present clock, or None when it cannot be read."""
        if self._handle is None:
            return None
        try:
            clock = self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM)
            bits = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        except Exception as error:  # noqa: BLE001 - as above
            self.why_not = f"NVML does not answer: {error}"
            self._handle = None
            return None
        return GpuReading(
            sm_clock_mhz=int(clock),
            throttle_reasons=tuple(said for bit, said in _REASONS.items() if bits & bit),
        )


def _physical_index(index: int, visible: str | None) -> int | None:
    """NVML counts all GPUs, torch only those it is shown; None when they are shown by name."""
    if not visible:
        return index
    shown = visible.split(",")
    if index >= len(shown) or not shown[index].strip().isdigit():
        return None
    return int(shown[index])
