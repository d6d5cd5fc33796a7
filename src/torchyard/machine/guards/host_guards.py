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
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from torchyard.machine.knob import Machine
from torchyard.machine.system.file_tree import FileTree, HeldFile

Number = int | float


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One number, or why there is none."""

    name: str
    """As reports call the guard."""
    reading: str
    """The field of `GuardReading` that it fills."""
    grows: bool
    """Whether the number counts from the start of the machine, so that differences matter."""
    unavailable: str = ""
    """Why it cannot be read; empty when it can."""
    files: tuple[HeldFile, ...] = ()
    parse: Callable[[Sequence[bytes]], Number | None] = lambda _: None

    def read(self) -> Number | None:
        """The present number; None when it cannot be read (any more)."""
        if self.unavailable:
            return None
        return self.parse([file.read() for file in self.files])

    def close(self) -> None:
        """Close the files; readings after this are None."""
        for file in self.files:
            file.close()


def number_of(text: bytes) -> int | None:
    """The whole number that the text is."""
    try:
        return int(text)
    except ValueError:
        return None


def total_of(texts: Sequence[bytes]) -> int | None:
    """The sum; None when one is no number, because a sum that loses a part falls."""
    numbers = [number_of(text) for text in texts]
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def highest(texts: Sequence[bytes]) -> int | None:
    """The highest of those that are numbers."""
    known = [number for number in map(number_of, texts) if number is not None]
    return max(known) if known else None


_NAME: Final = "swap"
_COUNTERS: Final = (b"\npswpin ", b"\npswpout ")


def open_swapping(machine: Machine) -> Reader:
    """Pages in and out since the machine started."""
    file = machine.files.hold("proc/vmstat")
    because = file.because
    if not because and _pages([file.read()]) is None:
        because = "/proc/vmstat has no pswpin and pswpout: the kernel is built without swap"
        file.close()
    return Reader(
        name=_NAME,
        reading="swapped_pages",
        grows=True,
        unavailable=because,
        files=(file,),
        parse=_pages,
    )


def _pages(texts: Sequence[bytes]) -> int | None:
    """Searches instead of matching patterns: the table is long, and that took four times as long."""
    text, pages = texts[0], 0
    for name in _COUNTERS:
        start = text.find(name)
        number = text[start + len(name) :].split(maxsplit=1)[:1] if start >= 0 else []
        if not number:
            return None
        pages += int(number[0])
    return pages


_TOTAL_US: Final = re.compile(rb"^some .*\btotal=(\d+)", re.MULTILINE)


def open_memory_pressure(machine: Machine) -> Reader:
    """Nanoseconds since the machine started."""
    file = machine.files.hold("proc/pressure/memory")
    because = file.because
    if not because and _stall_ns([file.read()]) is None:
        because = "/proc/pressure/memory has no total"
        file.close()
    return Reader(
        name="memory pressure",
        reading="memory_stall_ns",
        grows=True,
        unavailable=because,
        files=(file,),
        parse=_stall_ns,
    )


def _stall_ns(texts: Sequence[bytes]) -> int | None:
    found = _TOTAL_US.search(texts[0])
    return int(found[1]) * 1000 if found else None


MOST_CORES: Final = 64
"""With more cores only packages are counted: each file costs about 2 us, before and after a block,
and a core that gets too hot on such a machine is one of many."""

_CPUS: Final = "sys/devices/system/cpu"
_MISSING: Final = (
    f"/{_CPUS}/cpu*/thermal_throttle is missing: only Intel's processors have it, and virtual"
    " machines hide it"
)


def open_throttling(machine: Machine) -> Reader:
    """Events since the machine started, of all packages and cores together."""
    paths = _counters(machine.files)
    because = "" if paths else _MISSING
    files = tuple(machine.files.hold(path) for path in paths)
    for file in files:
        because = because or file.because
    return Reader(
        name="throttle counters",
        reading="throttle_events",
        grows=True,
        unavailable=because,
        files=files,
        parse=total_of,
    )


def _counters(files: FileTree) -> list[str]:
    packages: dict[str, str] = {}
    cores: dict[str, str] = {}
    for folder in files.paths(f"{_CPUS}/cpu[0-9]*/thermal_throttle"):
        topology = f"{folder.rpartition('/')[0]}/topology"
        package = files.read(f"{topology}/physical_package_id").value or ""
        siblings = files.read(f"{topology}/thread_siblings_list").value or folder
        for found, key, name in (
            (packages, package, "package_throttle_count"),
            (cores, siblings, "core_throttle_count"),
        ):
            path = f"{folder}/{name}"
            if key not in found and files.exists(path):
                found[key] = path
    return [*packages.values(), *(cores.values() if len(cores) <= MOST_CORES else ())]


_DEVICES: Final = "sys/class/thermal"
_PROCESSOR_TYPES: Final = ("Processor", "cpufreq-", "thermal-cpufreq-", "cpuidle-", "idle-")
"""How the types of cooling devices begin that slow processors; fans and others do not matter, and
some of them (powerclamp, TCC offset) are not 0 at rest."""
MOST_DEVICES: Final = 16
"""Firmware lists one for each logical processor; a hot zone holds all of its processors alike."""


def open_cooling(machine: Machine) -> Reader:
    """The highest state."""
    folders = [
        path.rpartition("/")[0]
        for path in machine.files.paths(f"{_DEVICES}/cooling_device*/type")
        if (machine.files.read(path).value or "").startswith(_PROCESSOR_TYPES)
    ]
    files = tuple(machine.files.hold(f"{path}/cur_state") for path in folders[:MOST_DEVICES])
    because = "" if files else f"/{_DEVICES} has no cooling device of a processor"
    for file in files:
        because = because or file.because
    return Reader(
        name="cooling devices",
        reading="cooling_state",
        grows=False,
        unavailable=because,
        files=files,
        parse=highest,
    )


_ZONES: Final = "sys/class/thermal"
_CHIPS: Final = "sys/class/hwmon"
_PROCESSOR_CHIPS: Final = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
MOST_SENSORS: Final = 8


def open_temperature(machine: Machine) -> Reader:
    """Degrees Celsius of the hottest sensor."""
    paths = _zones(machine.files) or _sensors(machine.files)
    files = tuple(machine.files.hold(path) for path in paths[:MOST_SENSORS])
    because = "" if files else f"/{_ZONES} and /{_CHIPS} have no sensor of a processor"
    if files and all(file.because for file in files):
        because = files[0].because
    return Reader(
        name="temperature",
        reading="cpu_temperature_c",
        grows=False,
        unavailable=because,
        files=files,
        parse=_degrees,
    )


def _zones(files: FileTree) -> list[str]:
    found = []
    for path in files.paths(f"{_ZONES}/thermal_zone*/type"):
        kind = (files.read(path).value or "").lower()
        if kind == "x86_pkg_temp" or "cpu" in kind or kind.startswith("soc"):
            found.append(f"{path.rpartition('/')[0]}/temp")
    return found


def _sensors(files: FileTree) -> list[str]:
    """A chip's sensors of the whole package where they are labelled, else all of them."""
    found = []
    for path in files.paths(f"{_CHIPS}/hwmon*/name"):
        if files.read(path).value not in _PROCESSOR_CHIPS:
            continue
        folder = path.rpartition("/")[0]
        inputs = files.paths(f"{folder}/temp*_input")
        whole = [
            each
            for each in inputs
            if (files.read(each.replace("_input", "_label")).value or "").startswith(
                ("Package", "Tctl", "Tdie")
            )
        ]
        found += whole or inputs
    return found


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
"""A reader that takes longer is left out. Sensors behind firmware can take milliseconds; a block
lasts about 100 of them."""
_TRIES: Final = 3


class Watch:
    """Reads around blocks. Use as a context manager, or close it: it holds files open."""

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        readers: Sequence[Callable[[Machine], Reader]] = READERS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.states: dict[str, str] = {}
        """Each reader by its name, and why it is unavailable: empty when it is not."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def begin(self) -> None:
        """Just before a block."""
        self._started_ns = self._clock()
        self._before = [reader.read() if reader.grows else None for reader in self._readers]

    def end(self) -> dict[str, Number | None]:
        """Just after it: fields of `GuardReading`."""
        seen: dict[str, Number | None] = {"watched_ns": self._clock() - self._started_ns}
        for reader, before in zip(self._readers, self._before, strict=True):
            after = reader.read()
            if reader.grows:
                after = None if after is None or before is None else max(0, after - before)
            seen[reader.reading] = after
        return seen

    def close(self) -> None:
        """Close what the readers hold open."""
        for reader in self._readers:
            reader.close()

    def _too_slow(self, reader: Reader) -> str:
        durations_ns = []
        for _ in range(_TRIES):
            started_ns = self._clock()
            reader.read()
            durations_ns.append(self._clock() - started_ns)
        fastest_s = min(durations_ns) / 1e9
        return f"reading it takes {fastest_s * 1e3:.1f} ms" if fastest_s > SLOW_READING_S else ""
