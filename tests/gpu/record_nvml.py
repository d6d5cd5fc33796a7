"""Record the answers of NVML for a real card, for tests on machines without one. Changes nothing.

    python tests/gpu/record_nvml.py FILE.json

Asks every question that Torchyard asks, while the card is idle and while it multiplies matrices,
and times each. Identities are replaced: every card gets a made-up UUID, every process a made-up
number. Needs nvidia-ml-py and torch. Played back by tests/machine/recorded_nvml.py.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pynvml

SYSTEM: tuple[str, ...] = (
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount",
)
CLOCKS = (0, 1, 2)
DEVICE: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("nvmlDeviceGetName", ()),
    ("nvmlDeviceGetUUID", ()),
    ("nvmlDeviceGetVbiosVersion", ()),
    ("nvmlDeviceGetArchitecture", ()),
    ("nvmlDeviceGetPerformanceState", ()),
    ("nvmlDeviceGetPowerState", ()),
    *(("nvmlDeviceGetClockInfo", (kind,)) for kind in CLOCKS),
    *(("nvmlDeviceGetMaxClockInfo", (kind,)) for kind in CLOCKS),
    *(("nvmlDeviceGetApplicationsClock", (kind,)) for kind in CLOCKS),
    *(("nvmlDeviceGetDefaultApplicationsClock", (kind,)) for kind in CLOCKS),
    ("nvmlDeviceGetSupportedMemoryClocks", ()),
    ("nvmlDeviceGetCurrentClocksEventReasons", ()),
    ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    ("nvmlDeviceGetSupportedClocksEventReasons", ()),
    ("nvmlDeviceGetPowerUsage", ()),
    ("nvmlDeviceGetPowerManagementLimit", ()),
    ("nvmlDeviceGetPowerManagementDefaultLimit", ()),
    ("nvmlDeviceGetPowerManagementLimitConstraints", ()),
    ("nvmlDeviceGetEnforcedPowerLimit", ()),
    ("nvmlDeviceGetTemperatureV", (0,)),
    ("nvmlDeviceGetTemperature", (0,)),
    *(("nvmlDeviceGetTemperatureThreshold", (kind,)) for kind in range(4)),
    ("nvmlDeviceGetMarginTemperature", ()),
    ("nvmlDeviceGetPersistenceMode", ()),
    ("nvmlDeviceGetComputeMode", ()),
    ("nvmlDeviceGetEccMode", ()),
    ("nvmlDeviceGetMigMode", ()),
    ("nvmlDeviceGetCurrPcieLinkGeneration", ()),
    ("nvmlDeviceGetMaxPcieLinkGeneration", ()),
    ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    ("nvmlDeviceGetMaxPcieLinkWidth", ()),
    ("nvmlDeviceGetUtilizationRates", ()),
    ("nvmlDeviceGetMemoryInfo", ()),
    ("nvmlDeviceGetComputeRunningProcesses", ()),
    ("nvmlDeviceGetGraphicsRunningProcesses", ()),
    ("nvmlDeviceGetProcessUtilization", (0,)),
    ("nvmlDeviceGetCurrentClockFreqs", ()),
    ("nvmlDeviceGetPerformanceModes", ()),
)
LOAD = """
import sys, time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
"""


class Names:
    """Made-up numbers of processes, the same for the same process."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def pid(self, real: int) -> int:
        return self._numbers.setdefault(real, 1001 + len(self._numbers))


def plain(value: Any, names: Names) -> Any:
    """As JSON, without identities."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, tuple | list):
        return [plain(item, names) for item in value]
    fields = [name for name, *_ in getattr(value, "_fields_", ())] or list(vars(value))
    found = {name: plain(getattr(value, name), names) for name in fields}
    if "pid" in found:
        found["pid"] = names.pid(found["pid"])
    return {"fields": found}


def ask(name: str, arguments: tuple[Any, ...], names: Names) -> dict[str, Any]:
    function = getattr(pynvml, name, None)
    if function is None:
        return {"missing": True}
    try:
        return {"value": plain(function(*arguments), names)}
    except pynvml.NVMLError as error:
        return {"error": error.value, "said": str(error)}


def record(names: Names) -> list[list[Any]]:
    calls: list[list[Any]] = [[name, [], ask(name, (), names)] for name in SYSTEM]
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        questions = list(DEVICE)
        memory = ask("nvmlDeviceGetSupportedMemoryClocks", (handle,), names).get("value") or []
        questions += [("nvmlDeviceGetSupportedGraphicsClocks", (clock,)) for clock in memory]
        for name, more in questions:
            answer = ask(name, (handle, *more), names)
            if name == "nvmlDeviceGetUUID":
                answer = {"value": f"GPU-00000000-0000-0000-0000-{index + 1:012d}"}
            calls.append([name, [f"gpu{index}", *more], answer])
    return calls


def costs() -> dict[str, dict[str, float]]:
    """Microseconds of each question of the first card: median and slowest of thirty."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    found: dict[str, dict[str, float]] = {}
    for name, more in DEVICE:
        if getattr(pynvml, name, None) is None or name in found:
            continue
        durations_us = []
        for _ in range(30):
            started_ns = time.perf_counter_ns()
            ask(name, (handle, *more), Names())
            durations_us.append((time.perf_counter_ns() - started_ns) / 1000)
        found[name] = {
            "median_us": round(statistics.median(durations_us), 1),
            "slowest_us": round(max(durations_us), 1),
        }
    return found


def follow(seconds: float) -> dict[str, Any]:
    """Clock, power, temperature and reasons of the first card, every 20 ms."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    rows = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rows.append(
            (
                pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                pynvml.nvmlDeviceGetTemperature(handle, 0),
                pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            )
        )
        time.sleep(0.02)
    clocks, powers, temperatures, reasons = zip(*rows, strict=True)
    return {
        "samples": len(rows),
        "sm_clock_mhz": [min(clocks), statistics.median(clocks), max(clocks)],
        "power_w": [min(powers), statistics.median(powers), max(powers)],
        "temperature_c": [min(temperatures), max(temperatures)],
        "reasons": {hex(bits): reasons.count(bits) for bits in sorted(set(reasons))},
    }


def main() -> None:
    names = Names()
    pynvml.nvmlInit()
    recording: dict[str, Any] = {
        "package": f"nvidia-ml-py {metadata.version('nvidia-ml-py')}",
        "states": {"idle": record(names)},
        "costs_idle": costs(),
    }
    load = subprocess.Popen([sys.executable, "-c", LOAD, "12"], stdout=subprocess.PIPE, text=True)
    assert load.stdout is not None
    load.stdout.readline()
    time.sleep(3)
    recording["states"]["busy"] = record(names)
    recording["costs_busy"] = costs()
    recording["under_load"] = follow(3)
    load.wait()
    time.sleep(1)
    recording["after_load"] = follow(1)
    pynvml.nvmlShutdown()
    Path(sys.argv[1]).write_text(json.dumps(recording, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
