"""All GPUs of a machine at one moment, of whichever vendor. Reads only, needs no root."""

from __future__ import annotations

from dataclasses import dataclass

from torchyard.machine.gpu.amd import AmdGpu, read_amd
from torchyard.machine.gpu.nvidia import NvidiaGpu, read_nvidia
from torchyard.machine.knob import Machine

__all__ = ["GpuView", "read_gpus"]


@dataclass(frozen=True, kw_only=True)
class GpuView:
    """What was found, and why a vendor's GPUs could not be asked."""

    nvidia: tuple[NvidiaGpu, ...] = ()
    nvidia_because: str = ""
    amd: tuple[AmdGpu, ...] = ()


def read_gpus(machine: Machine) -> GpuView:
    """Ask every vendor; what is not there is a reason, never an error."""
    amd = read_amd(machine.files)
    if machine.gpus is None:
        return GpuView(nvidia_because="NVIDIA's library is not asked here", amd=amd)
    if machine.gpus.nvml is None:
        return GpuView(nvidia_because=machine.gpus.nvml_because, amd=amd)
    nvidia = read_nvidia(machine.gpus.nvml, machine.files)
    return GpuView(nvidia=nvidia.value or (), nvidia_because=nvidia.because, amd=amd)
