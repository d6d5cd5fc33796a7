"""Facts that change while the machine runs: load, pressure, steal, power, temperature.

Averages and counters that the kernel keeps, not a measurement.
"""

from __future__ import annotations

from typing import Final

from torchyard.machine.facts.reading import Reader, line_of, line_reader
from torchyard.machine.system.file_tree import CPU, FileTree, Reading

_SUPPLY: Final = "sys/class/power_supply"


def on_battery(files: FileTree) -> bool:
    """Whether the machine's own battery is discharging and no mains power is connected."""
    discharging = mains = False
    for name in files.names(_SUPPLY):
        folder = f"{_SUPPLY}/{name}"
        kind = line_of(files, f"{folder}/type").value
        # Batteries of mice and keyboards have the scope `Device`.
        if kind == "Battery" and line_of(files, f"{folder}/scope").value != "Device":
            discharging |= line_of(files, f"{folder}/status").value == "Discharging"
        elif kind in ("Mains", "USB"):
            mains |= line_of(files, f"{folder}/online").value == "1"
    return discharging and not mains


def throttle_counts(files: FileTree) -> dict[str, int]:
    """Return thermal throttling events since boot: file -> count. Intel only."""
    counts: dict[str, int] = {}
    for path in files.paths(f"{CPU}/cpu*/thermal_throttle/*_throttle_count"):
        number = line_of(files, path).number
        if number is not None:
            counts[path] = number
    return counts


def _source(files: FileTree) -> Reading:
    if not files.names(_SUPPLY):
        return Reading(because=f"/{_SUPPLY} is empty or missing, as on most servers")
    return Reading(value="battery" if on_battery(files) else "mains")


def _temperature(files: FileTree) -> Reading:
    """Return the hottest sensor of each driver."""
    hottest: dict[str, float] = {}
    sensors = [
        *((path, "type") for path in files.paths("sys/class/thermal/thermal_zone*/temp")),
        *((path, "name") for path in files.paths("sys/class/hwmon/hwmon*/temp*_input")),
    ]
    for path, label in sensors:
        number = line_of(files, path).number
        if number is not None:
            name = line_of(files, f"{path.rsplit('/', 1)[0]}/{label}").value or "a sensor"
            hottest[name] = max(hottest.get(name, -273.0), number / 1000)
    if not hottest:
        return Reading(because="/sys/class/thermal and /sys/class/hwmon have no sensor")
    return Reading(value=", ".join(f"{name} {degrees:.0f} °C" for name, degrees in hottest.items()))


def _throttled(files: FileTree) -> Reading:
    counts = throttle_counts(files)
    if not counts:
        return Reading(because=f"/{CPU}/cpu*/thermal_throttle: only Intel CPUs have these counters")
    most = max(counts.values())
    return Reading(value=f"{most} times" if most else "never")


POWER: Final[dict[str, Reader]] = {
    "source": _source,
    "temperature": _temperature,
    "thermal throttling since boot": _throttled,
}


LOAD_SECTION: Final = "load"
STEAL: Final = 7
"""Column of steal time in /proc/stat: user nice system idle iowait irq softirq steal."""


load_averages: Final = line_reader("proc/loadavg", lambda text: " ".join(text.split()[:3]))
"""Reader of the load averages over 1, 5 and 15 minutes."""


def pressure_share(files: FileTree, resource: str) -> float | None:
    """Return the share of the last ten seconds in which a process waited for a resource."""
    try:
        return float(pressure(files, resource)["avg10"]) / 100
    except (KeyError, ValueError):
        return None


def pressure(files: FileTree, resource: str) -> dict[str, str]:
    """Return the values of the line `some`: at least one process waited."""
    words = (line_of(files, f"proc/pressure/{resource}").value or "").split()
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def processor_times(files: FileTree) -> tuple[int, ...]:
    """Return the ticks of all CPUs since boot, in the columns of /proc/stat; empty if unreadable."""
    words = (line_of(files, "proc/stat").value or "").split()
    if not words or words[0] != "cpu" or not all(word.isdecimal() for word in words[1:]):
        return ()
    # Guest time is also counted in user and nice.
    return tuple(int(word) for word in words[1:9])


def _stolen(files: FileTree) -> Reading:
    times = processor_times(files)
    if len(times) <= STEAL or not sum(times):
        return Reading(because=files.read("proc/stat").because or "/proc/stat has no steal time")
    return Reading(value=f"{times[STEAL] / sum(times):.2%}")


def _waiting(resource: str) -> Reader:
    def read_share(files: FileTree) -> Reading:
        share = pressure_share(files, resource)
        if share is not None:
            return Reading(value=f"{share:.1%}")
        reading = files.read(f"proc/pressure/{resource}")
        return Reading(because=reading.because or f"/proc/pressure/{resource} has no avg10")

    return read_share


def _running(files: FileTree) -> Reading:
    for line in files.read("proc/stat").text.splitlines():
        name, _, value = line.partition(" ")
        if name == "procs_running" and value.strip().isdecimal():
            return Reading(value=value.strip())
    return Reading(because=files.read("proc/stat").because or "/proc/stat has no procs_running")


LOAD: Final[dict[str, Reader]] = {
    "load averages": load_averages,
    "runnable tasks": _running,
    "CPU pressure (10 s)": _waiting("cpu"),
    "memory pressure (10 s)": _waiting("memory"),
    "I/O pressure (10 s)": _waiting("io"),
    "steal time since boot": _stolen,
}
