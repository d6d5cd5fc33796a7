"""Read NVIDIA GPUs through NVML: state, clock event reasons, energy. Reads only, needs no root.

Every value may be unavailable: a GeForce has no ECC, an old driver no event reasons, a MIG slice no
clocks. NVML has no call that reads a clock lock; see `knobs/gpu_clocks.py`.

- Event reasons say why a clock is where it is: "clocks event reasons" since driver 535, "throttle
  reasons" before; the bits are the same.
- The energy counter exists since Volta. It counts the whole card, so it describes a workload only
  while nothing else computes on it, and it moves in steps: the interval must be long beside a
  step.
- `nvml_handle` finds the card that torch calls `cuda:1`. CUDA numbers the GPUs that it is shown
  (CUDA_VISIBLE_DEVICES), the fastest first unless CUDA_DEVICE_ORDER says otherwise; NVML numbers
  all of them by PCI bus address. Uncertain cases are not guessed: the clock of the wrong card is
  worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from torchyard.machine.gpu.library import (
    GpuProcess,
    ask,
    clock_range,
    gib,
    on_off,
    process_list,
    read_processes,
    shown_as,
)
from torchyard.machine.system.file_tree import Answer, FileTree

IDLE: Final = "idle"
USER_SETTING: Final = "clocks set by a user"
"""Application clocks; NVML's other name for the bit is "user defined clocks"."""

REASONS: Final[dict[int, str]] = {
    0x1: IDLE,
    0x2: USER_SETTING,
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clock",
}

THERMAL: Final = frozenset({"software thermal", "hardware thermal"})
HOLDS_DOWN: Final = THERMAL | {"power cap", "hardware slowdown", "power brake"}
"""Reasons that lower the clock below what the card would reach."""


def reasons_of(bits: int) -> tuple[str, ...]:
    """Return the names of the bits; unknown bits are shown as a number."""
    named = [name for bit, name in REASONS.items() if bits & bit]
    unknown = bits & ~sum(REASONS)
    return (*named, f"{unknown:#x}") if unknown else tuple(named)


def read_event_bits(nvml: Any, handle: Any) -> Answer[int]:
    """Return the present event reasons as bits."""
    return ask(
        nvml,
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        of=(handle,),
    )


def nvml_handle(nvml: Any, device: str, environment: Mapping[str, str]) -> Answer[Any]:
    """Return the NVML handle of a torch device, or why it is unknown."""
    number = int(device.partition(":")[2] or 0)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if visible:
        names = [name.strip() for name in visible.split(",")]
        if number >= len(names):
            return Answer(because=f"CUDA_VISIBLE_DEVICES={visible} has no device {number}")
        if not names[number].isdigit():
            return _by_uuid(nvml, names[number])
        number = int(names[number])
    models = {str(ask(nvml, "nvmlDeviceGetName", of=(one,)).value) for one in _handles(nvml)}
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len(models) > 1:
        return Answer(
            because="GPUs of several types, which CUDA orders by speed and NVML by PCI address: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return ask(nvml, "nvmlDeviceGetHandleByIndex", of=(number,))


def _by_uuid(nvml: Any, start: str) -> Answer[Any]:
    """Find a GPU by a UUID prefix; CUDA accepts a prefix that matches one GPU."""
    matches = [
        handle
        for handle in _handles(nvml)
        if start.startswith("GPU-") and (read_uuid(nvml, handle).value or "").startswith(start)
    ]
    if len(matches) == 1:
        return Answer(value=matches[0])
    return Answer(because=f"CUDA_VISIBLE_DEVICES={start} does not name one whole GPU here")


def read_uuid(nvml: Any, handle: Any) -> Answer[str]:
    """Return the UUID of a card."""
    return ask(nvml, "nvmlDeviceGetUUID", of=(handle,)).map(_text)


def _handles(nvml: Any) -> list[Any]:
    count = ask(nvml, "nvmlDeviceGetCount").value or 0
    handles = [ask(nvml, "nvmlDeviceGetHandleByIndex", of=(index,)) for index in range(int(count))]
    return [handle.value for handle in handles if handle.value is not None]


def read_energy_j(nvml: Any, handle: Any) -> Answer[float]:
    """Return the energy counter, or why there is none."""
    counted: Answer[int] = ask(nvml, "nvmlDeviceGetTotalEnergyConsumption", of=(handle,))
    return counted.map(lambda millijoules: millijoules / 1000)


COMPUTE_MODES: Final = {
    0: "default",
    1: "exclusive thread",
    2: "prohibited",
    3: "exclusive process",
}
GRAPHICS: Final = 0
SM: Final = 1
MEMORY: Final = 2
"""NVML clock types."""
_SLOWDOWN: Final = 1
_VOLTA: Final = 5
_SENSOR_GPU: Final = 0


@dataclass(frozen=True, kw_only=True)
class NvidiaGpu:
    """State of one GPU. Field names end in their unit; on and off are booleans."""

    index: int
    """NVML index, in PCI bus order; CUDA's may differ."""
    name: Answer[str] = shown_as("name")
    uuid: Answer[str] = shown_as("UUID")
    driver: Answer[str] = shown_as("driver")
    cuda: Answer[str] = shown_as("CUDA version of the driver")
    """Newest CUDA version that the driver supports."""
    vbios: Answer[str] = shown_as("VBIOS")
    locks_clocks: Answer[bool]
    """Whether the chip supports clock locks: Volta and newer."""
    performance_state: Answer[int] = shown_as("performance state", "P{}")
    sm_clock_mhz: Answer[int] = shown_as("graphics clock", "{} MHz")
    max_sm_clock_mhz: Answer[int] = shown_as("maximum graphics clock", "{} MHz")
    application_clock_mhz: Answer[int] = shown_as("application clock", "{} MHz")
    default_application_clock_mhz: Answer[int] = shown_as("default application clock", "{} MHz")
    clock_lock: Answer[str] = shown_as("graphics clock lock")
    """Never known: NVML has no call that reads it."""
    supported_clocks_mhz: Answer[tuple[int, ...]] = shown_as(
        "supported graphics clocks", clock_range
    )
    """Lowest first."""
    memory_clock_mhz: Answer[int] = shown_as("memory clock", "{} MHz")
    max_memory_clock_mhz: Answer[int] = shown_as("maximum memory clock", "{} MHz")
    supported_memory_clocks_mhz: Answer[tuple[int, ...]] = shown_as(
        "supported memory clocks", clock_range
    )
    reasons: Answer[tuple[str, ...]] = shown_as(
        "clock event reasons", lambda reasons: ", ".join(reasons) or "none"
    )
    power_w: Answer[float] = shown_as("power", "{:.0f} W")
    power_limit_w: Answer[float] = shown_as("power limit", "{:.0f} W")
    default_power_limit_w: Answer[float] = shown_as("default power limit", "{:.0f} W")
    temperature_c: Answer[int] = shown_as("temperature", "{} °C")
    slowdown_temperature_c: Answer[int] = shown_as("slowdown temperature", "{} °C")
    persistence: Answer[bool] = shown_as("persistence mode", on_off)
    compute_mode: Answer[str] = shown_as("compute mode")
    ecc: Answer[bool] = shown_as("ECC", on_off)
    pending_ecc: Answer[bool] = shown_as("ECC after the next reset", on_off)
    mig: Answer[bool] = shown_as("MIG", on_off)
    link: Answer[str] = shown_as("PCIe link")
    max_link: Answer[str] = shown_as("maximum PCIe link")
    busy_percent: Answer[int] = shown_as("utilization", "{} %")
    memory_used_bytes: Answer[int] = shown_as("memory used", gib)
    memory_bytes: Answer[int] = shown_as("memory", gib)
    processes: Answer[tuple[GpuProcess, ...]] = shown_as("processes", process_list)


def read_nvidia(nvml: Any, files: FileTree) -> Answer[tuple[NvidiaGpu, ...]]:
    """Read every GPU that NVML counts; a lost one has reasons instead of values."""
    count = ask(nvml, "nvmlDeviceGetCount", of=())
    if count.value is None:
        return Answer(because=count.because)
    return Answer(value=tuple(_read_one(nvml, index, files) for index in range(int(count.value))))


def read_temperature(nvml: Any, handle: Any) -> Answer[int]:
    """Return the temperature of the chip in degrees Celsius."""
    return ask(
        nvml, "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", of=(handle, _SENSOR_GPU)
    )


def supported_sm_clocks(nvml: Any, handle: Any) -> Answer[tuple[int, ...]]:
    """Return the graphics clocks at the highest memory clock, lowest first."""
    memory = ask(nvml, "nvmlDeviceGetSupportedMemoryClocks", of=(handle,))
    if not memory.value:
        return Answer(because=memory.because or "the card reports no memory clocks")
    clocks = ask(nvml, "nvmlDeviceGetSupportedGraphicsClocks", of=(handle, max(memory.value)))
    return clocks.map(lambda graphics: tuple(sorted(int(clock) for clock in graphics)))


def _read_one(nvml: Any, index: int, files: FileTree) -> NvidiaGpu:
    handle_answer = ask(nvml, "nvmlDeviceGetHandleByIndex", of=(index,))
    handle = handle_answer.value

    def get(*names: str, more: tuple[Any, ...] = ()) -> Answer[Any]:
        if handle is None:
            return Answer(because=handle_answer.because)
        return ask(nvml, *names, of=(handle, *more))

    def clock(name: str, kind: int) -> Answer[int]:
        return get(name, more=(kind,))

    def of_memory(name: str) -> Answer[int]:
        return get("nvmlDeviceGetMemoryInfo").map(lambda memory: int(getattr(memory, name)))

    def link(when: str) -> Answer[str]:
        generation = get(f"nvmlDeviceGet{when}PcieLinkGeneration")
        width = get(f"nvmlDeviceGet{when}PcieLinkWidth")
        if width.value is None:
            return generation.map(str) if generation.value is None else width
        return generation.map(lambda number: f"generation {number} x{width.value}")

    ecc = get("nvmlDeviceGetEccMode")
    lost: Answer[Any] | None = None if handle is not None else handle_answer
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
        clock_lock=Answer(
            because="NVML can set a clock lock but not read it; see the event reasons"
        ),
        supported_clocks_mhz=lost or supported_sm_clocks(nvml, handle),
        memory_clock_mhz=clock("nvmlDeviceGetClockInfo", MEMORY),
        max_memory_clock_mhz=clock("nvmlDeviceGetMaxClockInfo", MEMORY),
        supported_memory_clocks_mhz=get("nvmlDeviceGetSupportedMemoryClocks").map(
            lambda clocks: tuple(sorted(int(each) for each in clocks))
        ),
        reasons=lost or read_event_bits(nvml, handle).map(reasons_of),
        power_w=get("nvmlDeviceGetPowerUsage").map(_watts),
        power_limit_w=get("nvmlDeviceGetPowerManagementLimit").map(_watts),
        default_power_limit_w=get("nvmlDeviceGetPowerManagementDefaultLimit").map(_watts),
        temperature_c=lost or read_temperature(nvml, handle),
        slowdown_temperature_c=get("nvmlDeviceGetTemperatureThreshold", more=(_SLOWDOWN,)),
        persistence=get("nvmlDeviceGetPersistenceMode").map(bool),
        compute_mode=get("nvmlDeviceGetComputeMode").map(
            lambda mode: COMPUTE_MODES.get(int(mode), f"mode {mode}")
        ),
        ecc=ecc.map(lambda modes: bool(modes[0])),
        pending_ecc=ecc.map(lambda modes: bool(modes[1])),
        mig=get("nvmlDeviceGetMigMode").map(lambda modes: bool(modes[0])),
        link=link("Curr"),
        max_link=link("Max"),
        busy_percent=get("nvmlDeviceGetUtilizationRates").map(lambda rates: int(rates.gpu)),
        memory_used_bytes=of_memory("used"),
        memory_bytes=of_memory("total"),
        processes=lost or read_processes(nvml, handle, files),
    )


def _text(value: str | bytes) -> str:
    """Decode a text; old releases of nvidia-ml-py return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000
