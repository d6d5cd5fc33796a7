"""How far the kernel holds the processor down because of heat: cooling devices, 0 is not at all.

What Arm machines have instead of throttle counters; others have it beside them.
"""

from __future__ import annotations

from typing import Final

from torchyard.machine.guards.reader import Reader, highest
from torchyard.machine.knob import Machine

__all__ = ["open_reader"]

_DEVICES: Final = "sys/class/thermal"
_PROCESSOR_TYPES: Final = ("Processor", "cpufreq-", "thermal-cpufreq-", "cpuidle-", "idle-")
"""How the types of cooling devices begin that slow processors; fans and others do not matter, and
some of them (powerclamp, TCC offset) are not 0 at rest."""
MOST_DEVICES: Final = 16
"""Firmware lists one for each logical processor; a hot zone holds all of its processors alike."""


def open_reader(machine: Machine) -> Reader:
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
