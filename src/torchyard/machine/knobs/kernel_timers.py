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
from torchyard.machine.model import QuietRequest, Setting

NMI_WATCHDOG: Final = "proc/sys/kernel/nmi_watchdog"
STAT_INTERVAL: Final = "proc/sys/vm/stat_interval"
TIMER_MIGRATION: Final = "proc/sys/kernel/timer_migration"

_STAT_INTERVAL_S: Final = 10


def _watchdog_values(machine: Machine, request: QuietRequest) -> RequestedValues:  # noqa: ARG001
    interval_s = machine.files.read(STAT_INTERVAL).number or 0
    return RequestedValues(
        values={
            NMI_WATCHDOG: "0",
            # A longer interval that is already set stays.
            STAT_INTERVAL: str(max(_STAT_INTERVAL_S, interval_s)),
            TIMER_MIGRATION: "0",
        }
    )


WATCHDOGS_KNOB: Final[Knob] = FileKnob(
    name="watchdogs",
    about="kernel watchdog, statistics and timer migration",
    why=(
        "The watchdog uses a hardware counter and interrupts each CPU; memory statistics are "
        "collected on each CPU every second; timers of idle CPUs migrate to busy ones, which are "
        "the measuring ones. Without the watchdog, a hard lockup of the kernel is not detected."
    ),
    effect="small",
    requested=_watchdog_values,
)


RATE: Final = "proc/sys/kernel/perf_event_max_sample_rate"
SHARE: Final = "proc/sys/kernel/perf_cpu_time_max_percent"
_NO_LIMIT: Final = (0, 100)
_SOME_LIMIT: Final = "25"


@dataclass(frozen=True, kw_only=True)
class _PerfRate(FileKnob):
    def write(self, machine: Machine, setting: Setting) -> None:
        """Write the requested value, also if the share means no limit."""
        with _limit_for(machine, setting.place):
            super().write(machine, setting)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Write the original value; the share may be restored already and forbid the rate."""
        if self.same(setting.place, self.read(machine, setting.place), setting.found):
            return
        with _limit_for(machine, setting.place):
            super().restore(machine, setting)


@contextmanager
def _limit_for(machine: Machine, place: str) -> Iterator[None]:
    """Set a share that allows rates while a rate is written; do nothing for other files."""
    share = machine.files.read(SHARE)
    if place != RATE or share.value is None or share.number not in _NO_LIMIT:
        yield
        return
    machine.files.write(SHARE, _SOME_LIMIT)
    try:
        yield
    finally:
        machine.files.write(SHARE, share.value)


def _perf_rate_values(machine: Machine, request: QuietRequest) -> RequestedValues:  # noqa: ARG001
    return RequestedValues(values={SHARE: "1", RATE: "1"})


PERF_RATE_KNOB: Final[Knob] = _PerfRate(
    name="perf-rate",
    about="sampling rate limit of perf",
    why=(
        "A profiler that was left running interrupts every CPU thousands of times per second. The "
        "lowest rate prevents that. Profiling is useless until the rate is restored."
    ),
    effect="small",
    requested=_perf_rate_values,
)
