"""Read the host around each block: swapping, memory pressure, throttling, cooling, temperature.

A reader is one number, read repeatedly from files that stay open; `READERS` lists all of them and
`Watch` reads them before and after a block and reports the change. It does not judge.

- Swapping: pages of all processes (`/proc/vmstat`). The worker's own pages show as major faults;
  swapping by others takes a core for the kernel and shows that memory is short.
- Memory pressure: `/proc/pressure/memory`. Pressure on CPUs and disks is not read: it shows that
  some process waited, and the worker's own run-queue wait and page faults show whether it was the
  worker.
- Throttling: Intel's counters; the package counter is read once per package, the core counter
  once per core. Cooling devices (0: not limited) are what Arm machines have instead.
- Temperature: thermal zones, else hwmon sensors. Recorded and not judged: heat by itself slows
  nothing, and its consequences are seen by throttling, cooling and the frequency probe.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from torchyard.machine.knob import Machine
from torchyard.machine.system.file_tree import CPU, FileTree, HeldFile

Number = int | float


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reader of one number, or why it is unavailable."""

    name: str
    """Name of the guard in reports."""
    reading: str
    """The field of `GuardReading` that it fills."""
    grows: bool = False
    """Whether the number is a counter since boot, so that the difference is reported."""
    unavailable: str = ""
    """Why it is unavailable; empty if available."""
    files: tuple[HeldFile, ...] = ()
    parse: Callable[[Sequence[bytes]], Number | None] = lambda _: None

    def opened(self, machine: Machine, paths: Sequence[str], missing: str) -> Reader:
        """Open the files; `missing` is the reason if there are none, or none has the number."""
        files = tuple(machine.files.hold(path) for path in paths)
        unavailable = ""
        if self.parse([file.read() for file in files]) is None:
            unavailable = next((file.because for file in files if file.because), missing)
        return replace(self, unavailable=unavailable, files=files)

    def read(self) -> Number | None:
        """Return the present number; None if it cannot be read."""
        if self.unavailable:
            return None
        return self.parse([file.read() for file in self.files])

    def close(self) -> None:
        """Close the files; readings after this are None."""
        for file in self.files:
            file.close()


def number_of(text: bytes) -> int | None:
    """Parse an integer; None if the text is not one."""
    try:
        return int(text)
    except ValueError:
        return None


def total_of(texts: Sequence[bytes]) -> int | None:
    """Return the sum; None if one is not a number, because a partial sum would decrease."""
    numbers = [number for number in map(number_of, texts) if number is not None]
    return sum(numbers) if numbers and len(numbers) == len(texts) else None


def highest(texts: Sequence[bytes]) -> int | None:
    """Return the highest of the texts that are numbers."""
    return max((n for n in map(number_of, texts) if n is not None), default=None)


_SWAP_COUNTERS: Final = (b"\npswpin ", b"\npswpout ")


def open_swapping(machine: Machine) -> Reader:
    """Open the count of pages swapped in and out since boot."""
    missing = "/proc/vmstat has no pswpin and pswpout: the kernel is built without swap"
    reader = Reader(name="swap", reading="swapped_pages", grows=True, parse=_pages)
    return reader.opened(machine, ["proc/vmstat"], missing)


def _pages(texts: Sequence[bytes]) -> int | None:
    """Parse by searching, which was four times as fast as a regular expression on this table."""
    text, pages = texts[0], 0
    for name in _SWAP_COUNTERS:
        start = text.find(name)
        number = text[start + len(name) :].split(maxsplit=1)[:1] if start >= 0 else []
        if not number:
            return None
        pages += int(number[0])
    return pages


_TOTAL_US: Final = re.compile(rb"^some .*\btotal=(\d+)", re.MULTILINE)


def open_memory_pressure(machine: Machine) -> Reader:
    """Open the memory stall time since boot, in nanoseconds."""
    path = "proc/pressure/memory"
    reader = Reader(name="memory pressure", reading="memory_stall_ns", grows=True, parse=_stall_ns)
    return reader.opened(machine, [path], f"/{path} has no total")


def _stall_ns(texts: Sequence[bytes]) -> int | None:
    match = _TOTAL_US.search(texts[0])
    return int(match[1]) * 1000 if match else None


MOST_CORES: Final = 64
"""With more cores, only the package counters are read: each file costs about 2 us before and after a
block."""

_MISSING: Final = (
    f"/{CPU}/cpu*/thermal_throttle is missing: only Intel CPUs have it, and virtual machines"
    " hide it"
)


def open_throttling(machine: Machine) -> Reader:
    """Open the count of throttling events since boot, over all packages and cores."""
    name = "throttle counters"
    reader = Reader(name=name, reading="throttle_events", grows=True, parse=total_of)
    return reader.opened(machine, _counters(machine.files), _MISSING)


def _counters(files: FileTree) -> list[str]:
    packages: dict[str, str] = {}
    cores: dict[str, str] = {}
    for folder in files.paths(f"{CPU}/cpu[0-9]*/thermal_throttle"):
        topology = f"{folder.rpartition('/')[0]}/topology"
        package = files.read(f"{topology}/physical_package_id").text
        siblings = files.read(f"{topology}/thread_siblings_list").value or folder
        for paths_by_key, key, name in (
            (packages, package, "package_throttle_count"),
            (cores, siblings, "core_throttle_count"),
        ):
            path = f"{folder}/{name}"
            if key not in paths_by_key and files.exists(path):
                paths_by_key[key] = path
    return [*packages.values(), *(cores.values() if len(cores) <= MOST_CORES else ())]


_DEVICES: Final = "sys/class/thermal"
_PROCESSOR_TYPES: Final = ("Processor", "cpufreq-", "thermal-cpufreq-", "cpuidle-", "idle-")
"""Prefixes of the types of cooling devices that slow CPUs; others, such as fans, are ignored, and
some of them (powerclamp, TCC offset) are not 0 at rest."""
MOST_DEVICES: Final = 16
"""Firmware lists one for each CPU; a hot zone limits all of its CPUs alike."""


def open_cooling(machine: Machine) -> Reader:
    """Open the highest state of the CPU cooling devices."""
    folders = [
        path.rpartition("/")[0]
        for path in machine.files.paths(f"{_DEVICES}/cooling_device*/type")
        if machine.files.read(path).text.startswith(_PROCESSOR_TYPES)
    ]
    paths = [f"{folder}/cur_state" for folder in folders[:MOST_DEVICES]]
    reader = Reader(name="cooling devices", reading="cooling_state", parse=highest)
    return reader.opened(machine, paths, f"/{_DEVICES} has no CPU cooling device")


_ZONES: Final = "sys/class/thermal"
_CHIPS: Final = "sys/class/hwmon"
_PROCESSOR_CHIPS: Final = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
MOST_SENSORS: Final = 8


def open_temperature(machine: Machine) -> Reader:
    """Open the hottest CPU sensor, in degrees Celsius."""
    paths = _zones(machine.files) or _sensors(machine.files)
    reader = Reader(name="temperature", reading="cpu_temperature_c", parse=_degrees)
    missing = f"/{_ZONES} and /{_CHIPS} have no CPU sensor"
    return reader.opened(machine, paths[:MOST_SENSORS], missing)


def _zones(files: FileTree) -> list[str]:
    paths = []
    for path in files.paths(f"{_ZONES}/thermal_zone*/type"):
        kind = files.read(path).text.lower()
        if kind == "x86_pkg_temp" or "cpu" in kind or kind.startswith("soc"):
            paths.append(f"{path.rpartition('/')[0]}/temp")
    return paths


def _sensors(files: FileTree) -> list[str]:
    """Return the package sensors of each chip if labelled, else all of its sensors."""
    paths = []
    for path in files.paths(f"{_CHIPS}/hwmon*/name"):
        if files.read(path).value not in _PROCESSOR_CHIPS:
            continue
        folder = path.rpartition("/")[0]
        inputs = files.paths(f"{folder}/temp*_input")
        package_inputs = [
            each
            for each in inputs
            if files.read(each.replace("_input", "_label")).text.startswith(
                ("Package", "Tctl", "Tdie")
            )
        ]
        paths += package_inputs or inputs
    return paths


def _degrees(texts: Sequence[bytes]) -> float | None:
    thousandths = highest(texts)
    return None if thousandths is None else thousandths / 1000


READERS: Final[tuple[Callable[[Machine], Reader], ...]] = (
    open_swapping,
    open_memory_pressure,
    open_throttling,
    open_cooling,
    open_temperature,
)


SLOW_READING_S: Final = 0.001
"""A slower reader is not used. Sensors behind firmware can take milliseconds; a block takes about
100 ms."""
_TRIES: Final = 3


class HostGuards:
    """Reads the host before and after each block. A context manager, because it keeps files open."""

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        readers: Sequence[Callable[[Machine], Reader]] = READERS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.states: dict[str, str] = {}
        """Reader name -> why it is unavailable; empty if available."""
        self._clock = clock
        self._readers: list[Reader] = []
        self._before: list[Number | None] = []
        self._started_ns = 0
        for open_reader in readers:
            reader = open_reader(machine if machine is not None else Machine())
            because = reader.unavailable or self._too_slow(reader)
            self.states[reader.name] = because
            if because:
                reader.close()
            else:
                self._readers.append(reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Read just before a block."""
        self._started_ns = self._clock()
        self._before = [reader.read() if reader.grows else None for reader in self._readers]

    def end(self) -> dict[str, Number | None]:
        """Read just after it; return fields of `GuardReading`."""
        readings: dict[str, Number | None] = {"watched_ns": self._clock() - self._started_ns}
        for reader, before in zip(self._readers, self._before, strict=True):
            after = reader.read()
            if reader.grows:
                after = None if after is None or before is None else max(0, after - before)
            readings[reader.reading] = after
        return readings

    def close(self) -> None:
        """Close the files of the readers."""
        for reader in self._readers:
            reader.close()

    def _too_slow(self, reader: Reader) -> str:
        durations_ns = []
        for _ in range(_TRIES):
            started_ns = self._clock()
            reader.read()
            durations_ns.append(self._clock() - started_ns)
        fastest_s = min(durations_ns) / 1e9
        return (
            f"too slow: a reading takes {fastest_s * 1e3:.1f} ms"
            if fastest_s > SLOW_READING_S
            else ""
        )
