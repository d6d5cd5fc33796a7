"""Capped graphics clock of AMD's cards: performance level `perf_determinism` with an upper limit.

The kernel takes the level and the limit one after the other, through two files, and a change of
level resets the limit. So both are one setting: `auto 500-1700`. Which chips take it is known only
in part (MI200 do, MI300 depends on the part, MI350 and RDNA do not): the level is read back, and a
card that refuses is put back as it was.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from torchyard.core.machine import Effect, KnobState, Profile, Setting, Wish
from torchyard.errors import MissingTool, TorchyardError
from torchyard.machine.gpu.amd import AmdGpu, card_at, read_amd
from torchyard.machine.gpu.amd_clocks import graphics_limits
from torchyard.machine.gpu.clock_choice import SHARE_OF_HIGHEST
from torchyard.machine.knob import Knob, Machine, Reach

__all__ = ["KNOB", "AmdDeterminism"]

_LEVEL: Final = "perf_determinism"
_KEEPS_LIMITS: Final = (_LEVEL, "manual")
"""Levels whose limits are the user's; at all others the driver sets them."""
_VALUE: Final = re.compile(r"(\w+) (\d+)-(\d+)")
_REFUSING: Final[dict[str, str]] = {
    "gfx95": "its driver has no determinism (MI350)",
    "gfx10": "RDNA cards have no determinism",
    "gfx11": "RDNA cards have no determinism",
    "gfx12": "RDNA cards have no determinism",
}
"""Start of the chip's name -> why not."""
_STEP_MHZ: Final = 10


class AmdDeterminism:
    """One setting per AMD card, at `gpu/ADDRESS/determinism`; satisfies `Knob`."""

    name = "amd-determinism"
    about = "AMD cards cap their graphics clock"
    why = (
        "A free clock follows temperature and power. Capped below its limits the card holds it, "
        "though it may still fall. Kernels get slower, all of them alike, unless memory or the "
        "processor is what they wait for: compare numbers with the same cap only."
    )
    profile: Profile = "gpu"
    effect: Effect = "large"
    reach: Reach = "machine"
    needs_root = True
    default = True

    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """Every card; one that cannot becomes a note, all of them a reason."""
        settings: list[Setting] = []
        notes: list[str] = []
        for card in read_amd(machine.files):
            because = self._refusal(card, wish)
            level, limits = card.performance_level.value, card.graphics_limits_mhz.value
            if because or level is None or limits is None:
                because = because or card.performance_level.because
                because = because or card.graphics_limits_mhz.because
                notes.append(f"{card.card}: left alone, because {because}")
                continue
            cap = _cap(card, wish)
            notes.append(f"{card.card}: whether it takes determinism is known when it is written")
            settings.append(
                Setting(
                    knob=self.name,
                    place=f"gpu/{card.address}/determinism",
                    found=f"{level} {limits[0]}-{limits[1]}",
                    wanted=f"{_LEVEL} {limits[0]}-{cap}",
                )
            )
        if not settings:
            return KnobState(knob=self.name, unavailable="; ".join(notes) or "no AMD GPU here")
        return KnobState(knob=self.name, settings=tuple(settings), notes=tuple(notes))

    def read(self, machine: Machine, place: str) -> str:
        """Level and limits at this moment."""
        card = _card(machine, place)
        level = machine.files.read(f"{card}/device/power_dpm_force_performance_level")
        limits = graphics_limits(machine.files, card)
        if level.value is None or limits.value is None:
            raise MissingTool(f"cannot read {level.because or limits.because}")
        return f"{level.value.strip()} {limits.value[0]}-{limits.value[1]}"

    def write(self, machine: Machine, setting: Setting) -> None:
        """Set level and limit; a card that takes only half of it is put back."""
        if setting.wanted is None:
            return
        try:
            self._put(machine, setting.place, setting.wanted)
            now = self.read(machine, setting.place)
            if not self.same(setting.place, now, setting.wanted):
                raise MissingTool(f"the card took the level and has {now!r}")
        except TorchyardError:
            with suppress(TorchyardError):
                self.restore(machine, setting)
            raise

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Bring back level and limits."""
        with suppress(TorchyardError):
            if self.same(setting.place, self.read(machine, setting.place), setting.found):
                return
        self._put(machine, setting.place, setting.found)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Whether level and upper limit agree; the lower one only where the user may set it."""
        first, second = _VALUE.fullmatch(one), _VALUE.fullmatch(other)
        if first is None or second is None:
            return one == other
        if first[1] != second[1]:
            return False
        if first[1] == _LEVEL:
            return first[3] == second[3]
        return first[1] not in _KEEPS_LIMITS or first.groups() == second.groups()

    @staticmethod
    def _put(machine: Machine, place: str, value: str) -> None:
        parts = _VALUE.fullmatch(value)
        if parts is None:
            raise MissingTool(f"{value!r} is no level with limits")
        device = f"{_card(machine, place)}/device"
        level, lowest, highest = parts.groups()
        machine.files.write(f"{device}/power_dpm_force_performance_level", level)
        if level not in _KEEPS_LIMITS:
            return
        table = f"{device}/pp_od_clk_voltage"
        if level != _LEVEL:  # determinism has no lower limit
            machine.files.write(table, f"s 0 {lowest}")
        machine.files.write(table, f"s 1 {highest}")
        machine.files.write(table, "c")

    def _refusal(self, card: AmdGpu, wish: Wish) -> str:
        chip = card.chip.value or ""
        for start, because in _REFUSING.items():
            if chip.startswith(start):
                return because
        others = [
            str(process.pid) for process in card.processes.value or () if process.owner == "other"
        ]
        if others and self.name not in (*wish.only, *wish.also):
            return f"others compute on it (process {', '.join(others)}); --only {self.name} insists"
        return ""


def _cap(card: AmdGpu, wish: Wish) -> int:
    """The wish inside the card's range, or a share of its highest clock."""
    limits = card.graphics_limits_mhz.value or (0, 0)
    # At `auto` the limits are the chip's own; at other levels the list of states may be wider.
    highest = max(limits[1], card.max_graphics_clock_mhz.value or 0)
    if wish.gpu_clock_mhz is not None:
        return min(max(wish.gpu_clock_mhz, limits[0]), highest)
    return int(SHARE_OF_HIGHEST * highest) // _STEP_MHZ * _STEP_MHZ


def _card(machine: Machine, place: str) -> str:
    address = place.split("/")[1]
    card = card_at(machine.files, address)
    if card is None:
        raise MissingTool(f"there is no AMD GPU at {address}", hint="is its driver still loaded?")
    return card


KNOB: Final[Knob] = AmdDeterminism()
