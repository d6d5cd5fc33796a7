"""Periodic kernel work: watchdogs, statistics and timer migration, and the sampling rate of perf.

The kernel refuses every perf rate (EINVAL) while the time share is 0 or 100, which disable its
limit, and it lowers the rate by itself when samples take long. Writing the share leaves the rate
as it is (tried on 6.18). The share is therefore written first, and a rate is restored whatever
the share is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from torchyard.machine.knob import FileKnob, Knob, Machine, RequestedValues
from torchyard.machine.model import Setting, Wish

NMI_WATCHDOG: Final = "proc/sys/kernel/nmi_watchdog"
STAT_INTERVAL: Final = "proc/sys/vm/stat_interval"
TIMER_MIGRATION: Final = "proc/sys/kernel/timer_migration"

_STAT_INTERVAL_S: Final = 10


def _watchdog_wants(machine: Machine, request: Wish) -> RequestedValues:  # noqa: ARG001
    interval_s = machine.files.read(STAT_INTERVAL).number or 0
    return RequestedValues(
        values={
            NMI_WATCHDOG: "0",
            # Somebody who asked for even fewer of these gets them.
            STAT_INTERVAL: str(max(_STAT_INTERVAL_S, interval_s)),
            TIMER_MIGRATION: "0",
        }
    )


WATCHDOGS_KNOB: Final[Knob] = FileKnob(
    name="watchdogs",
    about="watchdog, statistics and timers of the kernel",
    why=(
        "The watchdog takes a hardware counter and interrupts each processor; memory statistics "
        "are collected on each processor every second; timers of idle processors move to busy "
        "ones, which are those that measure. Without the watchdog a hard lock-up of the kernel "
        "stays unnoticed."
    ),
    effect="small",
    wants=_watchdog_wants,
)


RATE: Final = "proc/sys/kernel/perf_event_max_sample_rate"
SHARE: Final = "proc/sys/kernel/perf_cpu_time_max_percent"
_NO_LIMIT: Final = (0, 100)
_SOME_LIMIT: Final = "25"


@dataclass(frozen=True, kw_only=True)
class _PerfRate(FileKnob):
    def write(self, machine: Machine, setting: Setting) -> None:
        """The wanted value, also where the share says that there is no limit."""
        with _limit_for(machine, setting.place):
            super().write(machine, setting)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """The found value; the share may be back already and forbid the rate."""
        if self.same(setting.place, self.read(machine, setting.place), setting.found):
            return
        with _limit_for(machine, setting.place):
            super().restore(machine, setting)


@contextmanager
def _limit_for(machine: Machine, place: str) -> Iterator[None]:
    """While a rate is written, a share that allows rates; others are not touched."""
    share = machine.files.read(SHARE)
    if place != RATE or share.value is None or share.number not in _NO_LIMIT:
        yield
        return
    machine.files.write(SHARE, _SOME_LIMIT)
    try:
        yield
    finally:
        machine.files.write(SHARE, share.value)


def _perf_rate_wants(machine: Machine, request: Wish) -> RequestedValues:  # noqa: ARG001
    return RequestedValues(values={SHARE: "1", RATE: "1"})


PERF_RATE_KNOB: Final[Knob] = _PerfRate(
    name="perf-rate",
    about="how often the kernel's profiler may interrupt",
    why=(
        "A profiler that somebody left running interrupts every processor thousands of times a "
        "second. At the lowest rate it cannot. Profiling is useless until the rate is put back."
    ),
    effect="small",
    wants=_perf_rate_wants,
)
