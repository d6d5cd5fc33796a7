"""How often the profiler of the kernel may interrupt a processor.

The kernel refuses every rate (EINVAL) while the share of time is 0 or 100, which switch its limit
off, and it lowers the rate by itself when samples take long. Writing the share leaves the rate as
it is (tried on 6.18). So the share goes first, and a rate is put back whatever the share is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Setting, Wish
from torchyard.machine.file_knob import FileKnob, Wants
from torchyard.machine.knob import Knob, Machine

__all__ = ["KNOB"]

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


def _wants(machine: Machine, wish: Wish) -> Wants:  # noqa: ARG001
    return Wants(values={SHARE: "1", RATE: "1"})


KNOB: Final[Knob] = _PerfRate(
    name="perf-rate",
    about="how often the kernel's profiler may interrupt",
    why=(
        "A profiler that somebody left running interrupts every processor thousands of times a "
        "second. At the lowest rate it cannot. Profiling is useless until the rate is put back."
    ),
    effect="small",
    wants=_wants,
)
