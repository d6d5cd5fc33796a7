"""What the knobs of one process do to a command that is about to start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torchyard.core.machine import Wish
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.knobs.isolation import joining
from torchyard.machine.process_knob import ProcessKnob, ProcessSetting
from torchyard.machine.tuning import chosen_knobs

__all__ = ["process_settings"]


def process_settings(
    machine: Machine, wish: Wish, knobs: Mapping[str, Knob] = KNOBS
) -> list[tuple[str, ProcessSetting]]:
    """(knob, setting) of every chosen knob of reach "process" that can do something here.

    Before them all, entering the cores that are set apart, where some are: who is not in there
    cannot be pinned to them.
    """
    found = [("isolation", setting) for setting in [joining(machine)] if not setting.unavailable]
    for name in chosen_knobs(wish, reaches=("process",), knobs=knobs):
        setting = cast("ProcessKnob", knobs[name]).prefix(machine, wish)
        if not setting.unavailable:
            found.append((name, setting))
    return found
