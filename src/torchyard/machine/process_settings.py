"""What the knobs of one process do to a command that is about to start, or to this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import cast

from torchyard.core.machine import Wish
from torchyard.core.machine_change import Tuned
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.knobs.isolation import joining
from torchyard.machine.process_knob import ProcessKnob, ProcessSetting
from torchyard.machine.tuning import chosen_knobs

__all__ = ["apply_here", "own_priority_and_cores", "process_settings"]

_ISOLATION = "isolation"


def process_settings(
    machine: Machine, wish: Wish, *, tuned: Tuned | None = None, knobs: Mapping[str, Knob] = KNOBS
) -> list[tuple[str, ProcessSetting]]:
    """(knob, setting) of every chosen knob of reach "process" that can do something here.

    Where the tune has set cores apart, joining them comes first: nobody may be pinned to them
    from outside.
    """
    found: list[tuple[str, ProcessSetting]] = []
    if tuned is not None and any(item.setting.knob == _ISOLATION for item in tuned.written):
        found.append((_ISOLATION, joining(machine)))
    names = chosen_knobs(wish, reaches=("process",), knobs=knobs)
    found += [(name, cast("ProcessKnob", knobs[name]).prefix(machine, wish)) for name in names]
    return [(name, setting) for name, setting in found if not setting.unavailable]


def apply_here(settings: Sequence[tuple[str, ProcessSetting]]) -> list[tuple[str, str]]:
    """Apply settings to this process, which its children inherit; (knob, reason) of those refused.

    Variables are not set.
    """
    refused: list[tuple[str, str]] = []
    for name, setting in settings:
        try:
            setting.apply()
        except OSError as error:
            refused.append((name, error.strerror or str(error)))
    return refused


@contextmanager
def own_priority_and_cores() -> Iterator[None]:
    """Priority and processors of this process are as before after the block.

    To be left after cores are given back: until then the kernel does not take others.
    """
    nice, cpus = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    try:
        yield
    finally:
        with suppress(OSError):  # a right that is gone
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        with suppress(OSError):  # processors that are gone
            os.sched_setaffinity(0, cpus)
