"""How hot the processor is: thermal zones, else sensors of the hardware monitor.

Recorded beside each block and not judged: heat by itself slows nothing, and what it leads to is seen
by the throttle counters, the cooling devices and the frequency probe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchyard.machine.file_tree import FileTree
from torchyard.machine.guards.reader import Reader, highest
from torchyard.machine.knob import Machine

__all__ = ["open_reader"]

_ZONES: Final = "sys/class/thermal"
_CHIPS: Final = "sys/class/hwmon"
_PROCESSOR_CHIPS: Final = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
MOST_SENSORS: Final = 8


def open_reader(machine: Machine) -> Reader:
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
