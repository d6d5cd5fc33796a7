"""Time that the host, interrupts and soft interrupts took on the cores, from /proc/stat."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from torchyard.machine.file_tree import FileTree
from torchyard.machine.lookout.source import Disturber, GrowingTotals, Scene

__all__ = ["ProcessorTime", "busy_s"]

_STAT: Final = "proc/stat"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_USER, _NICE, _SYSTEM = 1, 2, 3
_TAKEN: Final = {
    8: Disturber("steal", "the host"),
    6: Disturber("interrupt time", "interrupts"),
    7: Disturber("interrupt time", "soft interrupts"),
}
"""Column -> who took it. Some kernels count interrupts as time of the process they hit: then it is 0."""


class ProcessorTime:
    """Seconds taken from the cores, summed over them."""

    name = "processor time"

    def __init__(self) -> None:
        self.unavailable = ""
        self._totals = GrowingTotals()

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """Per core, so that 1 second in 1 second is all of the time."""
        found = scene.files.read(_STAT)
        if found.value is None:
            self.unavailable = found.because
            return {}
        totals = dict.fromkeys(_TAKEN.values(), 0.0)
        wanted = {f"cpu{core}" for core in scene.cores}
        for line in found.value.splitlines():
            fields = line.split()
            if fields and fields[0] in wanted:
                for column, disturber in _TAKEN.items():
                    totals[disturber] += _seconds(fields, column) / len(wanted)
        return self._totals.added(totals)


def busy_s(files: FileTree) -> float | None:
    """CPU time of all processes together since boot; None when it cannot be read."""
    fields = (files.read(_STAT).value or "").partition("\n")[0].split()
    if not fields or fields[0] != "cpu":
        return None
    return sum(_seconds(fields, column) for column in (_USER, _NICE, _SYSTEM))


def _seconds(fields: list[str], column: int) -> float:
    try:
        return int(fields[column]) / _TICKS_PER_S
    except (IndexError, ValueError):
        return 0.0
