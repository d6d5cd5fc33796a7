"""Where power comes from, how warm it is, and whether heat has lowered clocks since boot."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Fact
from torchyard.machine.facts.reading import Reader, facts_of, line_of
from torchyard.machine.file_tree import FileTree, Found
from torchyard.machine.knob import Machine

__all__ = ["SECTION", "on_battery", "read", "throttle_counts"]

SECTION: Final = "power"
_SUPPLY: Final = "sys/class/power_supply"
_CPU: Final = "sys/devices/system/cpu"


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def on_battery(files: FileTree) -> bool:
    """Whether a battery of the machine itself is being used up and no mains is on."""
    discharging = mains = False
    for name in files.names(_SUPPLY):
        folder = f"{_SUPPLY}/{name}"
        kind = line_of(files, f"{folder}/type").value
        # Batteries of mice and keyboards are of the scope `Device`.
        if kind == "Battery" and line_of(files, f"{folder}/scope").value != "Device":
            discharging |= line_of(files, f"{folder}/status").value == "Discharging"
        elif kind in ("Mains", "USB"):
            mains |= line_of(files, f"{folder}/online").value == "1"
    return discharging and not mains


def throttle_counts(files: FileTree) -> dict[str, int]:
    """How often heat has lowered clocks since boot: file -> count. Intel only."""
    counts: dict[str, int] = {}
    for path in files.paths(f"{_CPU}/cpu*/thermal_throttle/*_throttle_count"):
        number = line_of(files, path).number
        if number is not None:
            counts[path] = number
    return counts


def _source(files: FileTree) -> Found:
    if not files.names(_SUPPLY):
        return Found(because=f"/{_SUPPLY} is empty or missing, as on most servers")
    return Found(value="battery" if on_battery(files) else "mains")


def _temperature(files: FileTree) -> Found:
    """The warmest sensor of each driver."""
    warmest: dict[str, float] = {}
    sensors = [
        *((path, "type") for path in files.paths("sys/class/thermal/thermal_zone*/temp")),
        *((path, "name") for path in files.paths("sys/class/hwmon/hwmon*/temp*_input")),
    ]
    for path, label in sensors:
        number = line_of(files, path).number
        if number is not None:
            name = line_of(files, f"{path.rsplit('/', 1)[0]}/{label}").value or "a sensor"
            warmest[name] = max(warmest.get(name, -273.0), number / 1000)
    if not warmest:
        return Found(because="/sys/class/thermal and /sys/class/hwmon have no sensor")
    return Found(value=", ".join(f"{name} {degrees:.0f} °C" for name, degrees in warmest.items()))


def _throttled(files: FileTree) -> Found:
    counts = throttle_counts(files)
    if not counts:
        return Found(because=f"/{_CPU}/cpu*/thermal_throttle: only Intel's processors count it")
    most = max(counts.values())
    return Found(value=f"{most} times" if most else "never")


READERS: Final[dict[str, Reader]] = {
    "source": _source,
    "temperature": _temperature,
    "throttled by heat since boot": _throttled,
}
