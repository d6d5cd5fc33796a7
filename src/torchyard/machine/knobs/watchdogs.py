"""Timers of the kernel that interrupt every processor now and then."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.file_knob import FileKnob, Wants
from torchyard.machine.knob import Knob, Machine

__all__ = ["KNOB"]

NMI_WATCHDOG: Final = "proc/sys/kernel/nmi_watchdog"
STAT_INTERVAL: Final = "proc/sys/vm/stat_interval"
TIMER_MIGRATION: Final = "proc/sys/kernel/timer_migration"

_STAT_INTERVAL_S: Final = 10


def _wants(machine: Machine, wish: Wish) -> Wants:  # noqa: ARG001
    interval_s = machine.files.read(STAT_INTERVAL).number or 0
    return Wants(
        values={
            NMI_WATCHDOG: "0",
            # Somebody who asked for even fewer of these gets them.
            STAT_INTERVAL: str(max(_STAT_INTERVAL_S, interval_s)),
            TIMER_MIGRATION: "0",
        }
    )


KNOB: Final[Knob] = FileKnob(
    name="watchdogs",
    about="watchdog, statistics and timers of the kernel",
    why=(
        "The watchdog takes a hardware counter and interrupts each processor; memory statistics "
        "are collected on each processor every second; timers of idle processors move to busy "
        "ones, which are those that measure. Without the watchdog a hard lock-up of the kernel "
        "stays unnoticed."
    ),
    effect="small",
    wants=_wants,
)
