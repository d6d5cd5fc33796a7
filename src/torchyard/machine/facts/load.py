"""Facts that change while the machine runs: load, pressure, steal, power, temperature.

Averages and counters that the kernel keeps, not a measurement.
"""

from __future__ import annotations

from typing import Final

from torchyard.machine.facts.reading import Reader, facts_of, in_words, line_of
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact
from torchyard.machine.system.file_tree import FileTree, Found

POWER_SECTION: Final = "power"
_SUPPLY: Final = "sys/class/power_supply"
_CPU: Final = "sys/devices/system/cpu"


def read_power(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(POWER_SECTION, POWER_READERS, machine.files)


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


POWER_READERS: Final[dict[str, Reader]] = {
    "source": _source,
    "temperature": _temperature,
    "throttled by heat since boot": _throttled,
}


LOAD_SECTION: Final = "load"
STEAL: Final = 7
"""Place of stolen time in a line of /proc/stat: user nice system idle iowait irq softirq steal."""


def read_load(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(LOAD_SECTION, LOAD_READERS, machine.files)


def load_averages(files: FileTree) -> Found:
    """Processes that run or wait, averaged over 1, 5 and 15 minutes."""
    return in_words(line_of(files, "proc/loadavg"), lambda text: " ".join(text.split()[:3]))


def pressure_share(files: FileTree, resource: str) -> float | None:
    """Which part of the last ten seconds somebody waited for a resource."""
    try:
        return float(_pressure(files, resource)["avg10"]) / 100
    except (KeyError, ValueError):
        return None


def _pressure(files: FileTree, resource: str) -> dict[str, str]:
    """The first line, `some`: at least one process waited."""
    words = (line_of(files, f"proc/pressure/{resource}").value or "").split()
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def processor_times(files: FileTree) -> tuple[int, ...]:
    """Ticks of all processors since boot, as the first line of /proc/stat; empty when unreadable."""
    words = (line_of(files, "proc/stat").value or "").split()
    if not words or words[0] != "cpu" or not all(word.isdecimal() for word in words[1:]):
        return ()
    # The time of guests is counted in user and nice, too.
    return tuple(int(word) for word in words[1:9])


def _stolen(files: FileTree) -> Found:
    times = processor_times(files)
    if len(times) <= STEAL or not sum(times):
        return Found(because=files.read("proc/stat").because or "/proc/stat has no stolen time")
    return Found(value=f"{times[STEAL] / sum(times):.2%}")


def _waiting(resource: str) -> Reader:
    def read_share(files: FileTree) -> Found:
        share = pressure_share(files, resource)
        if share is not None:
            return Found(value=f"{share:.1%}")
        found = files.read(f"proc/pressure/{resource}")
        return Found(because=found.because or f"/proc/pressure/{resource} has no avg10")

    return read_share


def _running(files: FileTree) -> Found:
    for line in (files.read("proc/stat").value or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "procs_running" and value.strip().isdecimal():
            return Found(value=value.strip())
    return Found(because=files.read("proc/stat").because or "/proc/stat has no procs_running")


LOAD_READERS: Final[dict[str, Reader]] = {
    "load averages": load_averages,
    "running now": _running,
    "waits for processors (10 s)": _waiting("cpu"),
    "waits for memory (10 s)": _waiting("memory"),
    "waits for disks (10 s)": _waiting("io"),
    "stolen by the host since boot": _stolen,
}
