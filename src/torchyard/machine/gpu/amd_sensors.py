"""Sensors of AMD's cards: clock, power and temperature, cheap enough for every block.

Everything is a small file; which one is looked for once.
"""

from __future__ import annotations

from typing import Final

from torchyard.machine.file_tree import FileTree
from torchyard.machine.gpu.amd_clocks import clock_now, clock_states
from torchyard.machine.gpu.answer import Answer

__all__ = ["AmdSensors", "first_number", "text_of"]

_HOTTEST_FIRST: Final = ("junction", "edge")
"""Sensors by label: the hottest spot is what throttles; some chips have only the other one."""


class AmdSensors:
    """Of one card, by its folder such as `sys/class/drm/card1`."""

    def __init__(self, files: FileTree, card: str) -> None:
        self._files = files
        self._device = f"{card}/device"
        folders = files.paths(f"{self._device}/hwmon/hwmon*")
        self._folder = folders[0] if folders else f"{self._device}/hwmon/hwmon0"
        labels = {
            (files.read(path).value or "").strip(): path.removesuffix("_label")
            for path in files.paths(f"{self._folder}/temp*_label")
        }
        self._hottest = next(
            (labels[name] for name in _HOTTEST_FIRST if name in labels), f"{self._folder}/temp1"
        )

    def graphics_clock_mhz(self) -> Answer[int]:
        """The present one."""
        return clock_now(clock_states(self._files, f"{self._device}/pp_dpm_sclk"))

    def power_w(self) -> Answer[float]:
        """Newer chips say a moment's power, older ones an average."""
        return self._watts("power1_average", "power1_input")

    def power_limit_w(self) -> Answer[float]:
        """As set now."""
        return self._watts("power1_cap")

    def default_power_limit_w(self) -> Answer[float]:
        """As the maker set it."""
        return self._watts("power1_cap_default")

    def temperature_c(self) -> Answer[int]:
        """Of the hottest spot."""
        return first_number(self._files, f"{self._hottest}_input", unit=1000).map(round)

    def slowdown_temperature_c(self) -> Answer[int]:
        """Where the card slows itself down."""
        return first_number(self._files, f"{self._hottest}_crit", unit=1000).map(round)

    def _watts(self, *names: str) -> Answer[float]:
        paths = [f"{self._folder}/{name}" for name in names]
        return first_number(self._files, *paths, unit=1_000_000)


def text_of(files: FileTree, path: str) -> Answer[str]:
    """The text of a file that says something."""
    found = files.read(path)
    if not (found.value or "").strip():
        return Answer(because=found.because or f"/{path} is empty")
    return Answer(value=(found.value or "").strip())


def first_number(files: FileTree, *paths: str, unit: int) -> Answer[float]:
    """The number of the first file that holds one, in whole units."""
    because = ""
    for path in paths:
        found = files.read(path)
        number = found.number
        if number is not None:
            return Answer(value=number / unit)
        because = because or found.because or f"/{path} holds no number"
    return Answer(because=because)
