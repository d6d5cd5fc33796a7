"""A fixed clock: the lowest and the highest allowed clock of every policy are the same.

One setting is a pair, `lowest-highest` in kHz of a policy's folder, because neither can be written
without regard to the other. Intel's limits in percent, for all policies, are a pair of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Effect, KnobState, Profile, Setting, Wish
from torchyard.errors import MissingTool
from torchyard.machine.base_clock import base_clock, reachable_khz
from torchyard.machine.clock_policy import CPU, NO_POLICY, leave_offline_alone, policies
from torchyard.machine.file_tree import FileTree
from torchyard.machine.knob import Knob, Machine, Reach

__all__ = ["KNOB"]

PERCENT: Final = f"{CPU}/intel_pstate"

Pair = tuple[int, int]
"""Lowest and highest."""


@dataclass(frozen=True, kw_only=True)
class FrequencyKnob:
    """Pairs of limits."""

    name: str = "frequency"
    about: str = "a fixed clock: lowest and highest limit are the same"
    why: str = (
        "Between its limits the hardware moves the clock by load, heat and power. Fixed at the base "
        "clock, which any load can keep up, two runs get the same clock. Costs the speed of turbo: "
        "numbers are of a slower machine."
    )
    profile: Profile = "cpu"
    effect: Effect = "large"
    reach: Reach = "machine"
    needs_root: bool = True
    default: bool = True

    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """Limits of every policy, and the clock they would be fixed at."""
        files = machine.files
        found = policies(files)
        if not found:
            return KnobState(knob=self.name, unavailable=NO_POLICY)
        settings: list[Setting] = self._percent(files)
        notes: dict[str, None] = {}
        for policy in found:
            pair = _read_pair(files, policy)
            khz = _fixed_khz(files, policy, wish, notes)
            if pair is None or khz is None:
                notes[f"left alone, because /{policy} does not show its limits"] = None
                continue
            settings.append(
                Setting(knob=self.name, place=policy, found=_text(pair), wanted=_text((khz, khz)))
            )
        if not any(setting.place != PERCENT for setting in settings):
            return KnobState(knob=self.name, unavailable=next(iter(notes)))
        return KnobState(knob=self.name, settings=tuple(settings), notes=tuple(notes))

    def read(self, machine: Machine, place: str) -> str:
        """`lowest-highest`."""
        pair = _read_pair(machine.files, place)
        if pair is None:
            raise MissingTool(f"/{place} does not show its limits")
        return _text(pair)

    def write(self, machine: Machine, setting: Setting) -> None:
        """Fix the clock."""
        leave_offline_alone(machine.files, setting.place)
        if setting.wanted is not None:
            _put_pair(machine.files, setting.place, _pair(setting.wanted))

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Bring back both limits."""
        _put_pair(machine.files, setting.place, _pair(setting.found))

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """To the kHz: wanted clocks are ones that the hardware has, found ones were shown by it."""
        return one == other

    def _percent(self, files: FileTree) -> list[Setting]:
        """Intel's limits for all policies; the highest may be below the base clock."""
        pair = _read_pair(files, PERCENT)
        if pair is None:
            return []
        wanted = None if pair[1] == 100 else _text((pair[0], 100))  # noqa: PLR2004
        return [Setting(knob=self.name, place=PERCENT, found=_text(pair), wanted=wanted)]


def _fixed_khz(files: FileTree, policy: str, wish: Wish, notes: dict[str, None]) -> int | None:
    base = base_clock(files, policy)
    if base is None:
        return None
    if wish.frequency_khz is None:
        if base.guessed:
            notes[
                "no base clock is published here: the highest clock is used, which heat may take "
                "away again; choose a lower one yourself"
            ] = None
        return reachable_khz(files, policy, base.khz)
    khz = reachable_khz(files, policy, wish.frequency_khz)
    if khz != wish.frequency_khz:
        notes[f"{wish.frequency_khz} kHz is no clock of this processor: {khz} kHz is used"] = None
    if khz > base.khz and not base.guessed:
        notes[
            f"{khz} kHz is above the base clock of {base.khz} kHz: it needs turbo, so leave the "
            "knob `turbo` out"
        ] = None
    return khz


def _names(place: str) -> tuple[str, str]:
    if place == PERCENT:
        return f"{place}/min_perf_pct", f"{place}/max_perf_pct"
    return f"{place}/scaling_min_freq", f"{place}/scaling_max_freq"


def _read_pair(files: FileTree, place: str) -> Pair | None:
    lowest, highest = (files.read(path).number for path in _names(place))
    return None if lowest is None or highest is None else (lowest, highest)


def _put_pair(files: FileTree, place: str, wanted: Pair) -> None:
    """Write both limits so that they never cross, and only those that differ.

    Kernels before 5.4 refuse a lowest clock above the highest and the reverse; later ones take it
    and clamp. So when the new highest is not below the present lowest, the highest goes first
    (max before raising min); otherwise the lowest has to get out of its way first. One of both
    orders always works, because wanted limits do not cross each other.

    What differs only, because since 5.4 the kernel keeps what was asked for apart from what is in
    force and shows the latter. With turbo off the highest limit shows the base clock while 3.9 GHz
    were asked for: writing the base clock would change nothing now, and keep the processor there
    when turbo comes back.
    """
    present = _read_pair(files, place)
    if present is None:
        raise MissingTool(f"/{place} does not show its limits")
    lowest, highest = _names(place)
    steps = [(lowest, wanted[0], present[0]), (highest, wanted[1], present[1])]
    if wanted[1] >= present[0]:
        steps.reverse()
    for path, number, before in steps:
        if number != before:
            files.write(path, str(number))


def _text(pair: Pair) -> str:
    return f"{pair[0]}-{pair[1]}"


def _pair(text: str) -> Pair:
    lowest, _, highest = text.partition("-")
    return int(lowest), int(highest)


KNOB: Final[Knob] = FrequencyKnob()
