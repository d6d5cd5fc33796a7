"""Read the GPU between blocks: clock, event reasons, temperature, power, processes. No root.

nvidia-ml-py is optional: without it the readings are unavailable, with the reason reported once.
AMD cards are read from files, their throttling and energy with the package amdsmi. Does not judge.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torchyard.machine.gpu.amd import (
    AmdSensors,
    AmdSmi,
    address_of,
    amd_cards,
    count_others,
    open_amd_smi,
)
from torchyard.machine.gpu.library import (
    NOTHING_FOUND,
    GpuLibraries,
    Owner,
    ask,
    open_gpu_libraries,
    owner_of,
)
from torchyard.machine.gpu.nvidia import (
    HOLDS_DOWN,
    SM,
    nvml_handle,
    read_energy_j,
    read_event_bits,
    read_temperature,
    reasons_of,
)
from torchyard.machine.system.file_tree import Answer, FileTree
from torchyard.process.tree import is_own_worker

OTHER_PROCESSES_EVERY_S: Final = 2.0
"""Interval of the query for other processes. On an H200 a reading takes 21 us (median of 200; each
of clock, reasons, power and temperature 3 to 5 us), the process list 48 us with one process and more
with many, and the utilization by process 2 ms. The last is queried only if there are other
processes; a block takes about 100 ms."""


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One reading of a GPU; None: unavailable."""

    sm_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    """Reasons that lower the clock."""
    temperature_c: int | None = None
    power_w: float | None = None
    other_processes: int | None = None
    """Other processes that computed on it since the last query."""


class GpuGuard:
    """Reads the GPU that torch calls `device`.

    `why_not` is the reason if it cannot, `why_no_reasons` why it cannot read what lowers the clock.
    """

    def __init__(
        self,
        device: str,
        *,
        libraries: GpuLibraries | None = None,
        files: FileTree | None = None,
        environment: Mapping[str, str] | None = None,
        counts_other_cells: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `counts_other_cells`, processes of other cells of the same sweep are others, too."""
        self.why_not = ""
        self.why_no_reasons = ""
        self._counts_other_cells = counts_other_cells
        self._files = files or FileTree()
        self._libraries: GpuLibraries | None = None
        self._handle: Any = None
        self._amd: AmdSensors | None = None
        self._amd_card = ""
        self._amd_smi: AmdSmi | None = None
        self._clock = clock
        self._others: int | None = None
        self._queried_s: float | None = None
        self._sampled_us = 0
        if not device.startswith("cuda"):
            self.why_not = "the device is not a CUDA device"
            return
        self._libraries = libraries or open_gpu_libraries(self._files)
        if self._libraries.nvml is None:
            self._use_amd(self._libraries.nvml_because)
            return
        environment = os.environ if environment is None else environment
        handle = nvml_handle(self._libraries.nvml, device, environment)
        self._handle, self.why_not = handle.value, handle.because

    def begin_launch(self) -> None:
        """Ignore what other processes computed until now."""
        self._queried_s = None
        self._sampled_us = int(time.time() * 1e6)

    def read(self) -> GpuReading | None:
        """Read the present state; None if nothing can be read."""
        if self._amd is not None:
            reasons = self._amd_smi.throttle_reasons() if self._amd_smi is not None else None
            return GpuReading(
                sm_clock_mhz=self._amd.graphics_clock_mhz().value,
                throttle_reasons=(reasons.value or ()) if reasons is not None else (),
                other_processes=self._other_processes(
                    lambda: count_others(self._files, self._amd_card)
                ),
                temperature_c=self._amd.temperature_c().value,
                power_w=self._amd.power_w().value,
            )
        if self._handle is None or self._libraries is None:
            return None
        nvml = self._libraries.nvml
        sm_clock = ask(nvml, "nvmlDeviceGetClockInfo", of=(self._handle, SM))
        bits = read_event_bits(nvml, self._handle)
        if sm_clock.value is None and bits.value is None:
            self.why_not = sm_clock.because
            self._handle = None
            return None
        power: Answer[int] = ask(nvml, "nvmlDeviceGetPowerUsage", of=(self._handle,))
        return GpuReading(
            sm_clock_mhz=sm_clock.value,
            throttle_reasons=tuple(
                reason for reason in reasons_of(bits.value or 0) if reason in HOLDS_DOWN
            ),
            temperature_c=read_temperature(nvml, self._handle).value,
            power_w=power.map(lambda milliwatts: milliwatts / 1000).value,
            other_processes=self._other_processes(lambda: self._count_others(nvml)),
        )

    def read_energy_j(self) -> Answer[float]:
        """Read the card's energy counter; the difference of two readings is the energy used."""
        if self._amd_smi is not None:
            return self._amd_smi.energy_j()
        if self._amd is not None:
            return Answer(because=self.why_no_reasons)
        if self._handle is None or self._libraries is None:
            return Answer(because=self.why_not or "the GPU is no longer read")
        return read_energy_j(self._libraries.nvml, self._handle)

    def close(self) -> None:
        """Close NVML; later readings are None."""
        self._handle = None
        self._amd = None
        if self._amd_smi is not None:
            self._amd_smi.close()
        self._amd_smi = None
        if self._libraries is not None:
            self._libraries.close()

    def _use_amd(self, because: str) -> None:
        """Use the AMD card: torch for ROCm also says `cuda`. Unknown if there are several."""
        cards = amd_cards(self._files)
        if len(cards) == 1:
            self._amd_card = cards[0]
            self._amd = AmdSensors(self._files, cards[0])
            library = open_amd_smi(address_of(self._files, cards[0]))
            if library.value is not None:
                self.why_no_reasons = library.value.throttle_reasons().because
            self._amd_smi, self.why_no_reasons = (
                library.value,
                library.because or self.why_no_reasons,
            )
        else:
            self.why_not = (
                "several AMD GPUs: it is unknown which one torch uses" if cards else because
            )

    def _other_processes(self, count: Callable[[], int | None]) -> int | None:
        now = self._clock()
        if self._queried_s is None or now - self._queried_s >= OTHER_PROCESSES_EVERY_S:
            self._queried_s = now
            self._others = count()
        return self._others

    def _owner(self, pid: int) -> Owner:
        if not self._counts_other_cells:
            return owner_of(pid, self._files)
        # Own workers may be children of a template, which all cells share.
        return "ours" if is_own_worker(pid) else owner_of(pid, self._files, environment={})

    def _count_others(self, nvml: Any) -> int | None:
        """Count the processes that computed; an idle one that only holds memory does not disturb."""
        running = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", of=(self._handle,))
        if running.value is None:
            return None
        owners = {int(item.pid): self._owner(int(item.pid)) for item in running.value}
        others = {pid for pid, owner in owners.items() if owner == "other"}
        if "unknown" in owners.values():
            return None
        if not others:
            return 0
        since_us = self._sampled_us or int((time.time() - OTHER_PROCESSES_EVERY_S) * 1e6)
        samples = ask(nvml, "nvmlDeviceGetProcessUtilization", of=(self._handle, since_us))
        if samples.value is None:
            # No samples: none computed. Any other error: unknown, so all may have.
            return 0 if samples.code == NOTHING_FOUND else len(others)
        self._sampled_us = max(
            (int(sample.timeStamp) for sample in samples.value), default=since_us
        )
        return len({int(sample.pid) for sample in samples.value if sample.smUtil} & others)
