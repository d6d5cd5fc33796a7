"""Time in which some process waited for a core, for memory or for a disk (PSI)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torchyard.machine.lookout.source import Disturber, GrowingTotals, Scene

__all__ = ["PressureTime"]

_WAITED_FOR: Final = {"cpu": "a core", "memory": "memory", "io": "a disk"}


class PressureTime:
    """Seconds in which somebody waited, on the whole machine."""

    name = "pressure"

    def __init__(self) -> None:
        self.unavailable = ""
        self._totals = GrowingTotals()

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """By what was waited for."""
        totals: dict[Disturber, float] = {}
        because = ""
        for resource, what in _WAITED_FOR.items():
            found = scene.files.read(f"proc/pressure/{resource}")
            total_us = _total_us(found.value or "")
            if total_us is None:
                because = because or found.because or f"/proc/pressure/{resource} has no total"
            else:
                totals[Disturber(f"waiting for {what}", "some process")] = total_us / 1e6
        if not totals:
            self.unavailable = because
        return self._totals.added(totals)


def _total_us(text: str) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["some"] and words[-1].startswith("total="):
            total = words[-1].removeprefix("total=")
            return int(total) if total.isdecimal() else None
    return None
