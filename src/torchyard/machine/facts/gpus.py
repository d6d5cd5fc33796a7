"""GPU facts: what the GPUs are, how they are set, which processes use them. One section per GPU.

`read_gpus` reads all GPUs of all vendors at one moment; `advice/gpu_advice.py` judges that reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchyard.machine.gpu.amd import AmdGpu, read_amd
from torchyard.machine.gpu.compute_processes import GpuProcess
from torchyard.machine.gpu.nvidia import NvidiaGpu, read_nvidia
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact
from torchyard.machine.system.file_tree import Answer


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


_NO_LOCK_READING = "NVML can set a clock lock but not read it; see the event reasons"


def read(machine: Machine) -> tuple[Fact, ...]:
    """Return all GPU facts; one fact with the reason if there is no GPU."""
    return gpu_facts(read_gpus(machine))


def gpu_facts(view: GpuView) -> tuple[Fact, ...]:
    """Return all GPU facts of a reading."""
    facts: list[Fact] = []
    for gpu in view.nvidia:
        facts += _nvidia(gpu)
    for number, card in enumerate(view.amd, start=len(view.nvidia)):
        facts += _amd(number, card)
    if not view.nvidia and (view.nvidia_because or not view.amd):
        because = view.nvidia_because or "the driver lists no GPU"
        facts.append(Fact(section="gpu", name="NVIDIA GPUs", unavailable=because))
    return tuple(facts)


def _nvidia(gpu: NvidiaGpu) -> list[Fact]:
    make_fact = _fact_factory(f"gpu {gpu.index}")
    return [
        make_fact("name", gpu.name),
        make_fact("UUID", gpu.uuid),
        make_fact("driver", gpu.driver),
        make_fact("CUDA version of the driver", gpu.cuda),
        make_fact("VBIOS", gpu.vbios),
        make_fact("performance state", gpu.performance_state, lambda state: f"P{state}"),
        make_fact("graphics clock", gpu.sm_clock_mhz, _mhz),
        make_fact("maximum graphics clock", gpu.max_sm_clock_mhz, _mhz),
        make_fact("application clock", gpu.application_clock_mhz, _mhz),
        make_fact("default application clock", gpu.default_application_clock_mhz, _mhz),
        make_fact("graphics clock lock", Answer(because=_NO_LOCK_READING)),
        make_fact("supported graphics clocks", gpu.supported_clocks_mhz, _range),
        make_fact("memory clock", gpu.memory_clock_mhz, _mhz),
        make_fact("maximum memory clock", gpu.max_memory_clock_mhz, _mhz),
        make_fact("supported memory clocks", gpu.supported_memory_clocks_mhz, _range),
        make_fact("clock event reasons", gpu.reasons, lambda reasons: ", ".join(reasons) or "none"),
        make_fact("power", gpu.power_w, _watts),
        make_fact("power limit", gpu.power_limit_w, _watts),
        make_fact("default power limit", gpu.default_power_limit_w, _watts),
        make_fact("temperature", gpu.temperature_c, _celsius),
        make_fact("slowdown temperature", gpu.slowdown_temperature_c, _celsius),
        make_fact("persistence mode", gpu.persistence, _on_off),
        make_fact("compute mode", gpu.compute_mode),
        make_fact("ECC", gpu.ecc, _on_off),
        make_fact("ECC after the next reset", gpu.pending_ecc, _on_off),
        make_fact("MIG", gpu.mig, _on_off),
        make_fact("PCIe link", _nvidia_link(gpu.link_generation, gpu.link_width)),
        make_fact("maximum PCIe link", _nvidia_link(gpu.max_link_generation, gpu.max_link_width)),
        make_fact("utilization", gpu.busy_percent, _percent),
        make_fact("memory used", gpu.memory_used_bytes, _gib),
        make_fact("memory", gpu.memory_bytes, _gib),
        make_fact("processes", gpu.processes, _processes),
    ]


def _amd(number: int, card: AmdGpu) -> list[Fact]:
    make_fact = _fact_factory(f"gpu {number}")
    return [
        make_fact("name", card.name),
        make_fact("location", Answer(value=f"{card.card} at {card.address}")),
        make_fact("chip", card.chip),
        make_fact("VBIOS", card.vbios),
        make_fact("performance level", card.performance_level),
        make_fact("graphics clock", card.graphics_clock_mhz, _mhz),
        make_fact("maximum graphics clock", card.max_graphics_clock_mhz, _mhz),
        make_fact(
            "graphics clock limits",
            card.graphics_limits_mhz,
            lambda limits: f"{limits[0]} to {limits[1]} MHz",
        ),
        make_fact("memory clock", card.memory_clock_mhz, _mhz),
        make_fact("maximum memory clock", card.max_memory_clock_mhz, _mhz),
        make_fact("power", card.power_w, _watts),
        make_fact("power limit", card.power_limit_w, _watts),
        make_fact("default power limit", card.default_power_limit_w, _watts),
        make_fact("temperature", card.temperature_c, _celsius),
        make_fact("slowdown temperature", card.slowdown_temperature_c, _celsius),
        make_fact("PCIe link", card.link),
        make_fact("maximum PCIe link", card.max_link),
        make_fact("utilization", card.busy_percent, _percent),
        make_fact("processes", card.processes, _processes),
    ]


def _fact_factory(section: str) -> Callable[..., Fact]:
    def make_fact(name: str, answer: Answer[Any], form: Callable[[Any], str] = str) -> Fact:
        if answer.value is None:
            return Fact(section=section, name=name, unavailable=answer.because)
        return Fact(section=section, name=name, value=form(answer.value))

    return make_fact


def _nvidia_link(generation: Answer[int], width: Answer[int]) -> Answer[str]:
    if generation.value is None or width.value is None:
        return Answer(because=generation.because or width.because)
    return Answer(value=f"generation {generation.value} x{width.value}")


def _processes(processes: tuple[GpuProcess, ...]) -> str:
    return ", ".join(_process(process) for process in processes) or "none"


def _process(process: GpuProcess) -> str:
    memory = "" if process.memory_bytes is None else f", {_gib(process.memory_bytes)}"
    whose = {"ours": ", ours", "other": "", "unknown": ", not visible from here"}[process.owner]
    name = f" {process.name}" if process.name else ""
    return f"{process.pid}{name} ({process.kind}{memory}{whose})"


def _range(clocks: tuple[int, ...]) -> str:
    if len(clocks) == 1:
        return _mhz(clocks[0])
    return f"{len(clocks)} from {min(clocks)} to {max(clocks)} MHz" if clocks else "none"


def _mhz(clock: int) -> str:
    return f"{clock} MHz"


def _watts(power: float) -> str:
    return f"{power:.0f} W"


def _celsius(temperature: int) -> str:
    return f"{temperature} °C"


def _percent(share: int) -> str:
    return f"{share} %"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


def _on_off(state: bool) -> str:
    return "on" if state else "off"
