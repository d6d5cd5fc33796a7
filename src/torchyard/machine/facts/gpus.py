"""GPU facts: what the GPUs are, how they are set, which processes use them. One section per GPU.

`read_gpus` reads all GPUs of all vendors at one moment; `advice/gpu_advice.py` judges that reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchyard.machine.gpu.amd import AmdGpu, read_amd
from torchyard.machine.gpu.compute_processes import GpuProcess
from torchyard.machine.gpu.library import Answer
from torchyard.machine.gpu.nvidia import NvidiaGpu, read_nvidia
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact


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


_NO_LOCK_READING = "NVML can set a clock lock and cannot read it; see the event reasons"


def read(machine: Machine) -> tuple[Fact, ...]:
    """Everything that can be said about GPUs; one fact with the reason when there are none."""
    return gpu_facts(read_gpus(machine))


def gpu_facts(view: GpuView) -> tuple[Fact, ...]:
    """The same from a reading that was taken already."""
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
    say = _speaker(f"gpu {gpu.index}")
    return [
        say("name", gpu.name),
        say("identity", gpu.uuid),
        say("driver", gpu.driver),
        say("CUDA of the driver", gpu.cuda),
        say("VBIOS", gpu.vbios),
        say("performance state", gpu.performance_state, lambda state: f"P{state}"),
        say("graphics clock", gpu.sm_clock_mhz, _mhz),
        say("highest graphics clock", gpu.max_sm_clock_mhz, _mhz),
        say("application clock", gpu.application_clock_mhz, _mhz),
        say("default application clock", gpu.default_application_clock_mhz, _mhz),
        say("graphics clock lock", Answer(because=_NO_LOCK_READING)),
        say("graphics clocks to choose from", gpu.supported_clocks_mhz, _range),
        say("memory clock", gpu.memory_clock_mhz, _mhz),
        say("highest memory clock", gpu.max_memory_clock_mhz, _mhz),
        say("memory clocks to choose from", gpu.supported_memory_clocks_mhz, _range),
        say("clock event reasons", gpu.reasons, lambda reasons: ", ".join(reasons) or "none"),
        say("power", gpu.power_w, _watts),
        say("power limit", gpu.power_limit_w, _watts),
        say("default power limit", gpu.default_power_limit_w, _watts),
        say("temperature", gpu.temperature_c, _celsius),
        say("slowdown temperature", gpu.slowdown_temperature_c, _celsius),
        say("persistence mode", gpu.persistence, _on_off),
        say("compute mode", gpu.compute_mode),
        say("ECC", gpu.ecc, _on_off),
        say("ECC after the next reset", gpu.pending_ecc, _on_off),
        say("MIG", gpu.mig, _on_off),
        say("PCIe link", _nvidia_link(gpu.link_generation, gpu.link_width)),
        say("best PCIe link", _nvidia_link(gpu.max_link_generation, gpu.max_link_width)),
        say("busy", gpu.busy_percent, _percent),
        say("memory used", gpu.memory_used_bytes, _gib),
        say("memory", gpu.memory_bytes, _gib),
        say("processes", gpu.processes, _processes),
    ]


def _amd(number: int, card: AmdGpu) -> list[Fact]:
    say = _speaker(f"gpu {number}")
    return [
        say("name", card.name),
        say("identity", Answer(value=f"{card.card} at {card.address}")),
        say("chip", card.chip),
        say("VBIOS", card.vbios),
        say("performance level", card.performance_level),
        say("graphics clock", card.graphics_clock_mhz, _mhz),
        say("highest graphics clock", card.max_graphics_clock_mhz, _mhz),
        say(
            "graphics clock limits",
            card.graphics_limits_mhz,
            lambda limits: f"{limits[0]} to {limits[1]} MHz",
        ),
        say("memory clock", card.memory_clock_mhz, _mhz),
        say("highest memory clock", card.max_memory_clock_mhz, _mhz),
        say("power", card.power_w, _watts),
        say("power limit", card.power_limit_w, _watts),
        say("default power limit", card.default_power_limit_w, _watts),
        say("temperature", card.temperature_c, _celsius),
        say("slowdown temperature", card.slowdown_temperature_c, _celsius),
        say("PCIe link", card.link),
        say("best PCIe link", card.max_link),
        say("busy", card.busy_percent, _percent),
        say("processes", card.processes, _processes),
    ]


def _speaker(section: str) -> Callable[..., Fact]:
    def say(name: str, answer: Answer[Any], form: Callable[[Any], str] = str) -> Fact:
        if answer.value is None:
            return Fact(section=section, name=name, unavailable=answer.because)
        return Fact(section=section, name=name, value=form(answer.value))

    return say


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
