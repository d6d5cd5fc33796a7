"""What NVML says about every NVIDIA GPU, at one moment. Reads only, needs no root.

Everything may be unavailable: a GeForce has no ECC, an old driver no event reasons, a slice of a
GPU no clocks. NVML has no call that reads a clock lock; see `knobs/nvidia_clocks.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from torchyard.machine.file_tree import FileTree
from torchyard.machine.gpu.answer import Answer, ask
from torchyard.machine.gpu.event_reasons import read_event_bits, reasons_of
from torchyard.machine.gpu.processes import GpuProcess, read_processes

__all__ = [
    "COMPUTE_MODES",
    "NvidiaGpu",
    "read_nvidia",
    "read_temperature",
    "supported_sm_clocks",
]

COMPUTE_MODES: Final = {
    0: "default",
    1: "exclusive thread",
    2: "prohibited",
    3: "exclusive process",
}
GRAPHICS: Final = 0
SM: Final = 1
MEMORY: Final = 2
"""NVML's kinds of clocks."""
_SLOWDOWN: Final = 1
_VOLTA: Final = 5
_SENSOR_GPU: Final = 0


@dataclass(frozen=True, kw_only=True)
class NvidiaGpu:
    """One GPU. Names end in their unit; on and off are booleans."""

    index: int
    """NVML's number, in the order of the PCI bus; CUDA's may differ."""
    name: Answer[str]
    uuid: Answer[str]
    driver: Answer[str]
    cuda: Answer[str]
    """The newest CUDA that the driver takes."""
    vbios: Answer[str]
    locks_clocks: Answer[bool]
    """Whether the chip takes a clock lock: Volta and newer."""
    performance_state: Answer[int]
    sm_clock_mhz: Answer[int]
    max_sm_clock_mhz: Answer[int]
    application_clock_mhz: Answer[int]
    default_application_clock_mhz: Answer[int]
    supported_clocks_mhz: Answer[tuple[int, ...]]
    """Of the graphics clock, lowest first."""
    memory_clock_mhz: Answer[int]
    max_memory_clock_mhz: Answer[int]
    supported_memory_clocks_mhz: Answer[tuple[int, ...]]
    reasons: Answer[tuple[str, ...]]
    power_w: Answer[float]
    power_limit_w: Answer[float]
    default_power_limit_w: Answer[float]
    temperature_c: Answer[int]
    slowdown_temperature_c: Answer[int]
    persistence: Answer[bool]
    compute_mode: Answer[str]
    ecc: Answer[bool]
    pending_ecc: Answer[bool]
    mig: Answer[bool]
    link_generation: Answer[int]
    max_link_generation: Answer[int]
    link_width: Answer[int]
    max_link_width: Answer[int]
    busy_percent: Answer[int]
    memory_used_bytes: Answer[int]
    memory_bytes: Answer[int]
    processes: Answer[tuple[GpuProcess, ...]]


def read_nvidia(nvml: Any, files: FileTree) -> Answer[tuple[NvidiaGpu, ...]]:
    """Every GPU that NVML counts. One that is lost still has its place, with reasons."""
    count = ask(nvml, "nvmlDeviceGetCount", of=())
    if count.value is None:
        return Answer(because=count.because)
    return Answer(value=tuple(_read_one(nvml, index, files) for index in range(int(count.value))))


def read_temperature(nvml: Any, handle: Any) -> Answer[int]:
    """Of the chip, in degrees Celsius."""
    return ask(
        nvml, "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", of=(handle, _SENSOR_GPU)
    )


def supported_sm_clocks(nvml: Any, handle: Any) -> Answer[tuple[int, ...]]:
    """Graphics clocks beside the highest memory clock, lowest first."""
    memory = ask(nvml, "nvmlDeviceGetSupportedMemoryClocks", of=(handle,))
    if not memory.value:
        return Answer(because=memory.because or "the card lists no memory clocks")
    clocks = ask(nvml, "nvmlDeviceGetSupportedGraphicsClocks", of=(handle, max(memory.value)))
    return clocks.map(lambda found: tuple(sorted(int(clock) for clock in found)))


def _read_one(nvml: Any, index: int, files: FileTree) -> NvidiaGpu:
    found = ask(nvml, "nvmlDeviceGetHandleByIndex", of=(index,))
    handle = found.value

    def get(*names: str, more: tuple[Any, ...] = ()) -> Answer[Any]:
        if handle is None:
            return Answer(because=found.because)
        return ask(nvml, *names, of=(handle, *more))

    def clock(name: str, kind: int) -> Answer[int]:
        return get(name, more=(kind,))

    def of_memory(name: str) -> Answer[int]:
        return get("nvmlDeviceGetMemoryInfo").map(lambda memory: int(getattr(memory, name)))

    ecc = get("nvmlDeviceGetEccMode")
    supported: Answer[tuple[int, ...]] = Answer(because=found.because)
    processes: Answer[tuple[GpuProcess, ...]] = Answer(because=found.because)
    reasons: Answer[tuple[str, ...]] = Answer(because=found.because)
    temperature: Answer[int] = Answer(because=found.because)
    if handle is not None:
        supported = supported_sm_clocks(nvml, handle)
        processes = read_processes(nvml, handle, files)
        reasons = read_event_bits(nvml, handle).map(reasons_of)
        temperature = read_temperature(nvml, handle)
    return NvidiaGpu(
        index=index,
        name=get("nvmlDeviceGetName").map(_text),
        uuid=get("nvmlDeviceGetUUID").map(_text),
        driver=ask(nvml, "nvmlSystemGetDriverVersion").map(_text),
        cuda=ask(nvml, "nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion").map(
            lambda number: f"{number // 1000}.{number % 1000 // 10}"
        ),
        vbios=get("nvmlDeviceGetVbiosVersion").map(_text),
        locks_clocks=get("nvmlDeviceGetArchitecture").map(lambda chip: _VOLTA <= int(chip) < 2**31),
        performance_state=get("nvmlDeviceGetPerformanceState", "nvmlDeviceGetPowerState"),
        sm_clock_mhz=clock("nvmlDeviceGetClockInfo", SM),
        max_sm_clock_mhz=clock("nvmlDeviceGetMaxClockInfo", SM),
        application_clock_mhz=clock("nvmlDeviceGetApplicationsClock", GRAPHICS),
        default_application_clock_mhz=clock("nvmlDeviceGetDefaultApplicationsClock", GRAPHICS),
        supported_clocks_mhz=supported,
        memory_clock_mhz=clock("nvmlDeviceGetClockInfo", MEMORY),
        max_memory_clock_mhz=clock("nvmlDeviceGetMaxClockInfo", MEMORY),
        supported_memory_clocks_mhz=get("nvmlDeviceGetSupportedMemoryClocks").map(
            lambda clocks: tuple(sorted(int(each) for each in clocks))
        ),
        reasons=reasons,
        power_w=get("nvmlDeviceGetPowerUsage").map(_watts),
        power_limit_w=get("nvmlDeviceGetPowerManagementLimit").map(_watts),
        default_power_limit_w=get("nvmlDeviceGetPowerManagementDefaultLimit").map(_watts),
        temperature_c=temperature,
        slowdown_temperature_c=get("nvmlDeviceGetTemperatureThreshold", more=(_SLOWDOWN,)),
        persistence=get("nvmlDeviceGetPersistenceMode").map(bool),
        compute_mode=get("nvmlDeviceGetComputeMode").map(
            lambda mode: COMPUTE_MODES.get(int(mode), f"mode {mode}")
        ),
        ecc=ecc.map(lambda modes: bool(modes[0])),
        pending_ecc=ecc.map(lambda modes: bool(modes[1])),
        mig=get("nvmlDeviceGetMigMode").map(lambda modes: bool(modes[0])),
        link_generation=get("nvmlDeviceGetCurrPcieLinkGeneration"),
        max_link_generation=get("nvmlDeviceGetMaxPcieLinkGeneration"),
        link_width=get("nvmlDeviceGetCurrPcieLinkWidth"),
        max_link_width=get("nvmlDeviceGetMaxPcieLinkWidth"),
        busy_percent=get("nvmlDeviceGetUtilizationRates").map(lambda rates: int(rates.gpu)),
        memory_used_bytes=of_memory("used"),
        memory_bytes=of_memory("total"),
        processes=processes,
    )


def _text(value: str | bytes) -> str:
    """Old releases of nvidia-ml-py answer in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000
