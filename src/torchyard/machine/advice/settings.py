"""Settings that a tune would change. Which ones, and why, is asked of the knobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from torchyard.core.machine import Advice, Setting, Wish
from torchyard.machine.activity import Activity
from torchyard.machine.idle_state import idle_states
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS

__all__ = ["advise"]

_MOST_VALUES: Final = 3
_LATENCY: Final = "idle-latency"


def advise(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """One for each knob of a plain tune of the processor that would write something.

    Knobs of a process are left out: nothing about the machine is wrong without them. GPUs have
    advice of their own, which sees more than settings.
    """
    for knob in KNOBS.values():
        if knob.profile != "cpu" or not knob.default or knob.reach == "process":
            continue
        if knob.name == _LATENCY and not idle_states(machine.files):
            continue  # the device is there and can be held, but nothing sleeps
        changes = [
            setting
            for setting in knob.survey(machine, Wish()).settings
            if setting.wanted is not None
            and not knob.same(setting.place, setting.found, setting.wanted)
        ]
        if changes:
            yield Advice(
                name=knob.name,
                effect=knob.effect,
                what=f"{knob.about}: {_values(changes)}",
                why=knob.why,
                mend=f"{'sudo ' * knob.needs_root}torchyard machine tune --only {knob.name}",
                needs_root=knob.needs_root,
            )


def _values(changes: list[Setting]) -> str:
    """Found and wanted values under the names of their files, with how many places have them."""
    counts = Counter(
        (_file_name(setting.place), setting.found or "nothing", setting.wanted or "nothing")
        for setting in changes
    )
    shown = [
        f"{name}{found} instead of {wanted}" + (f" ({count} places)" if count > 1 else "")
        for (name, found, wanted), count in counts.most_common(_MOST_VALUES)
    ]
    more = len(counts) - _MOST_VALUES
    return ", ".join([*shown, *([f"{more} more"] if more > 0 else [])])


def _file_name(place: str) -> str:
    """`no_turbo ` of a path; nothing for places that are one of many or no file of settings."""
    name = place.rpartition("/")[2]
    return "" if name == place or name[-1:].isdecimal() or place.startswith("dev/") else f"{name} "
