"""GPU facts: what the GPUs are, how they are set, which processes use them. One section per GPU.

`read_gpus` reads all GPUs of all vendors at one moment; `advice/gpu_advice.py` judges that reading.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchyard.machine.gpu.amd import AmdGpu, read_amd
from torchyard.machine.gpu.labels import facts_of_fields
from torchyard.machine.gpu.nvidia import NvidiaGpu, read_nvidia
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact


@dataclass(frozen=True, kw_only=True)
class GpuView:
    """Readings of all GPUs, and why NVIDIA GPUs could not be queried."""

    nvidia: tuple[NvidiaGpu, ...] = ()
    nvidia_because: str = ""
    amd: tuple[AmdGpu, ...] = ()


def read_gpus(machine: Machine) -> GpuView:
    """Read the GPUs of all vendors; never raises."""
    amd = read_amd(machine.files)
    if machine.gpus is None:
        return GpuView(nvidia_because="NVML is not used here", amd=amd)
    if machine.gpus.nvml is None:
        return GpuView(nvidia_because=machine.gpus.nvml_because, amd=amd)
    nvidia = read_nvidia(machine.gpus.nvml, machine.files)
    return GpuView(nvidia=nvidia.value or (), nvidia_because=nvidia.because, amd=amd)


def read(machine: Machine) -> tuple[Fact, ...]:
    """Return all GPU facts; one fact with the reason if there is no GPU."""
    return gpu_facts(read_gpus(machine))


def gpu_facts(view: GpuView) -> tuple[Fact, ...]:
    """Return all GPU facts of a reading."""
    facts: list[Fact] = []
    for number, gpu in enumerate((*view.nvidia, *view.amd)):
        facts += facts_of_fields(f"gpu {number}", gpu)
    if not view.nvidia and (view.nvidia_because or not view.amd):
        because = view.nvidia_because or "the driver lists no GPU"
        facts.append(Fact(section="gpu", name="NVIDIA GPUs", unavailable=because))
    return tuple(facts)
