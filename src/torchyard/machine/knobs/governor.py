"""The governor: what decides about the clock, for every policy of cpufreq.

Its tunables vanish with it and come back with the kernel's defaults, so they are kept and put back,
as are the clock that the governor `userspace` was told, preferences (AMD's driver forgets them while
the governor is `performance`) and the switch for turbo (which some drivers reset).
"""

from __future__ import annotations

import shlex
from typing import Final

from torchyard.core.machine import KnobState, Setting, Wish
from torchyard.errors import MissingTool
from torchyard.machine.clock_policy import CPU, CPUFREQ, NO_POLICY, ProcessorKnob, policies
from torchyard.machine.file_knob import Wants
from torchyard.machine.file_tree import FileTree, WriteRefused
from torchyard.machine.knob import Knob, Machine

__all__ = ["KNOB"]

WANTED: Final = "performance"
_NO_TURBO: Final = f"{CPU}/intel_pstate/no_turbo"
_FILES: Final = (
    "scaling_governor",
    "scaling_setspeed",
    "energy_performance_preference",
    "no_turbo",
)
"""Places that are files; every other place of this knob is a folder of tunables."""


class GovernorKnob(ProcessorKnob):
    """Governors are files; the tunables of one governor are one setting, a whole folder."""

    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """Tunables first: a restore goes backwards, and needs the governor before them."""
        state = super().survey(machine, wish)
        tunables = tuple(
            Setting(knob=self.name, place=folder, found=text, wanted=None)
            for folder in _tunable_folders(machine.files)
            if (text := _tunables(machine.files, folder))
        )
        if state.unavailable:
            return state
        return KnobState(knob=self.name, settings=tunables + state.settings, notes=state.notes)

    def read(self, machine: Machine, place: str) -> str:
        """A governor, or all tunables of a folder as `name=value` words."""
        if _is_file(place):
            return super().read(machine, place)
        text = _tunables(machine.files, place)
        if not text:
            raise MissingTool(f"/{place} is not there: no policy has that governor now")
        return text

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Bring back a governor, or those tunables that are others now."""
        if _is_file(setting.place):
            super().restore(machine, setting)
        else:
            _put_tunables(machine.files, setting.place, setting.found)


def _wants(machine: Machine, wish: Wish) -> Wants:  # noqa: ARG001
    files = machine.files
    found = policies(files)
    if not found:
        return Wants(unavailable=NO_POLICY)
    # A restore goes backwards: what is kept comes after the governor.
    kept: dict[str, str | None] = {_NO_TURBO: None} if files.exists(_NO_TURBO) else {}
    wanted: dict[str, str | None] = {}
    notes: list[str] = []
    for policy in found:
        if files.read(f"{policy}/scaling_governor").value == "userspace":
            kept[f"{policy}/scaling_setspeed"] = None
        if files.exists(f"{policy}/energy_performance_preference"):
            kept[f"{policy}/energy_performance_preference"] = None
        choices = (files.read(f"{policy}/scaling_available_governors").value or "").split()
        if WANTED in choices:
            wanted[f"{policy}/scaling_governor"] = WANTED
        else:
            notes.append(f"/{policy} has no governor {WANTED!r}, only {' '.join(choices) or '?'}")
    if not wanted:
        return Wants(unavailable=notes[0])
    return Wants(values={**kept, **wanted}, notes=tuple(notes))


def _is_file(place: str) -> bool:
    return place.endswith(_FILES)


def _tunable_folders(files: FileTree) -> list[str]:
    """Most drivers share one folder between all policies; some have one in each policy."""
    folders: dict[str, None] = {}
    for policy in policies(files):
        governor = files.read(f"{policy}/scaling_governor").value or ""
        for folder in (f"{policy}/{governor}", f"{CPUFREQ}/{governor}"):
            if governor and files.names(folder):
                folders[folder] = None
    return list(folders)


def _tunables(files: FileTree, folder: str) -> str:
    """`rate_limit_us=1000 up_threshold=95`, quoted as in a shell; empty when there are none."""
    found = ((name, files.read(f"{folder}/{name}").value) for name in files.names(folder))
    return shlex.join(f"{name}={value.strip()}" for name, value in found if value is not None)


def _put_tunables(files: FileTree, folder: str, text: str) -> None:
    """Write what differs, again and again while one more is taken.

    The thresholds of `conservative` are each refused while they cross the other one, so the right
    order depends on the values. Read-only tunables do not differ and are not written.
    """
    wanted = dict(word.split("=", 1) for word in shlex.split(text))
    refused: dict[str, WriteRefused] = {}
    progress = True
    while progress:
        progress = False
        refused.clear()
        for name, value in wanted.items():
            path = f"{folder}/{name}"
            if (files.read(path).value or "").strip() == value:
                continue
            try:
                files.write(path, value)
                progress = True
            except WriteRefused as error:
                refused[name] = error
        if not refused:
            return
    raise next(iter(refused.values()))


KNOB: Final[Knob] = GovernorKnob(
    name="governor",
    about="what decides about the clock of each processor",
    why=(
        "Most governors follow the load: the clock rises some milliseconds after work begins, so "
        "short measurements run at clocks of their own. `performance` always asks for the highest "
        "allowed clock. Costs power and heat while the machine idles."
    ),
    effect="large",
    wants=_wants,
)
