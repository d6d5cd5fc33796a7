"""Settings of the kernel: memory, ASLR, and periodic work such as watchdogs and perf sampling.

Swap is off while measuring if memory suffices, and hardly used otherwise. `swapon` cannot request
the negative priorities that the kernel assigns by itself, counting down from -2. They come back
when the areas are switched on in the same order, so all areas are one setting, the last one goes
off first, and a partial switch-off loses nothing.

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

from torchyard.machine.facts.memory import SwapArea, amount_kib, swap_areas
from torchyard.machine.facts.reading import gib
from torchyard.machine.knob import FileKnob, Knob, Machine, RequestedValues, chosen_word
from torchyard.machine.model import KnobState, QuietRequest, Setting
from torchyard.machine.system.file_tree import FileTree, missing_programs, run_program

_HUGE_PAGES_FOLDER: Final = "sys/kernel/mm/transparent_hugepage"
ENABLED: Final = f"{_HUGE_PAGES_FOLDER}/enabled"
DEFRAG: Final = f"{_HUGE_PAGES_FOLDER}/defrag"


def _huge_pages_values(machine: Machine, request: QuietRequest) -> RequestedValues:
    enabled = machine.files.read(ENABLED)
    if enabled.value is None:
        return RequestedValues(
            unavailable=f"this kernel has no transparent huge pages ({enabled.because})"
        )
    defrag = machine.files.read(DEFRAG).text
    if request.huge_pages == "keep":
        return RequestedValues(
            values={
                ENABLED: chosen_word(ENABLED, enabled.value),
                DEFRAG: chosen_word(DEFRAG, defrag),
            },
            notes=("kept and recorded: set it with --thp always, madvise or never",),
        )
    if request.huge_pages == "never":
        return RequestedValues(values={ENABLED: "never"})
    # Compact memory at the page fault: otherwise whether a page is huge depends on the present
    # fragmentation, which differs from launch to launch.
    return RequestedValues(values={ENABLED: request.huge_pages, DEFRAG: request.huge_pages})


HUGE_PAGES_KNOB: Final[Knob] = FileKnob(
    name="huge-pages", requested=_huge_pages_values, value_of=chosen_word
)


NUMA_BALANCING_PLACE: Final = "proc/sys/kernel/numa_balancing"


def _numa_balancing_values(machine: Machine, request: QuietRequest) -> RequestedValues:  # noqa: ARG001
    reading = machine.files.read(NUMA_BALANCING_PLACE)
    if reading.value is None:
        return RequestedValues(unavailable=f"this kernel has no NUMA balancing ({reading.because})")
    return RequestedValues(values={NUMA_BALANCING_PLACE: "0"})


NUMA_BALANCING_KNOB: Final[Knob] = FileKnob(name="numa-balancing", requested=_numa_balancing_values)


ASLR_PLACE: Final = "proc/sys/kernel/randomize_va_space"

FULL: Final = "2"
"""Stack, libraries, mappings and heap: the kernel's default."""
NONE: Final = "0"


def _aslr_values(machine: Machine, request: QuietRequest) -> RequestedValues:  # noqa: ARG001
    if request.randomize == "keep":
        return RequestedValues(notes=("kept: set it with --aslr on or --aslr off",))
    return RequestedValues(values={ASLR_PLACE: FULL if request.randomize == "on" else NONE})


ASLR_KNOB: Final[Knob] = FileKnob(name="aslr", requested=_aslr_values)


SWAPS: Final = "proc/swaps"
SWAPPINESS: Final = "proc/sys/vm/swappiness"
OFF: Final = "off"

_SPARE_SHARE: Final = 0.1
"""Share of the memory that must stay available after swap is read back."""
_LIMIT_S: Final = 600.0
"""Reading gigabytes back from a slow disk takes minutes."""
_NOT_SHOWN: Final = (
    "the kernel does not report the swap option `discard`: it is not restored if it was set"
)


@dataclass(frozen=True, kw_only=True)
class _Swap(Knob):
    name: str = "swap"

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:  # noqa: ARG002
        """Return all areas as one setting, or only swappiness if they must stay on."""
        files = machine.files
        reading = files.read(SWAPS)
        if reading.value is None:
            return self.unavailable(reading.because)
        areas = swap_areas(reading.value)
        if not areas:
            return self.state(notes=("swap is not enabled",))
        settings: list[Setting] = []
        reason = _why_not_off(files, areas)
        if not reason:
            settings.append(self.setting(SWAPS, _text(areas), OFF))
        swappiness = files.read(SWAPPINESS)
        if swappiness.value is not None:
            # 1 and not 0: with 0 the kernel kills processes rather than use swap.
            lowered = str(min(1, swappiness.number or 0))
            settings.append(self.setting(SWAPPINESS, swappiness.value, lowered))
        note = f"swap stays on, because {reason}" if reason else _NOT_SHOWN
        return self.state(*settings, notes=(note,))

    def read(self, machine: Machine, place: str) -> str:
        text = machine.files.read(place).or_raise()
        return _text(swap_areas(text)) if place == SWAPS else text

    def put(self, machine: Machine, place: str, value: str) -> None:
        if place != SWAPS:
            machine.files.write(place, value)
            return
        for area in reversed(_active_areas(machine)):
            run_program(machine.files, "swapoff", area.path, limit_s=_LIMIT_S)

    def restore(self, machine: Machine, setting: Setting) -> None:
        if setting.place != SWAPS:
            super().restore(machine, setting)
            return
        original = _areas_of_text(setting.found)
        _switch_on(machine, original)
        if self.same(SWAPS, self.read(machine, SWAPS), setting.found):
            return
        # Another program enabled or disabled an area: the kernel assigned other priorities.
        automatic = [area for area in original if area.priority < 0]
        on = {area.name for area in _active_areas(machine)}
        for area in reversed(automatic):
            if area.name in on:
                run_program(machine.files, "swapoff", area.path, limit_s=_LIMIT_S)
        _switch_on(machine, original)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        return sorted(one.split()) == sorted(other.split())


def _active_areas(machine: Machine) -> list[SwapArea]:
    return swap_areas(machine.files.read(SWAPS).text)


def _switch_on(machine: Machine, areas: list[SwapArea]) -> None:
    on = {area.name for area in _active_areas(machine)}
    for area in areas:
        if area.name not in on:
            priority = ("-p", str(area.priority)) if area.priority >= 0 else ()
            run_program(machine.files, "swapon", *priority, area.path, limit_s=_LIMIT_S)


def _text(areas: list[SwapArea]) -> str:
    return " ".join(f"{area.name}:{area.priority}" for area in areas) or OFF


def _areas_of_text(text: str) -> list[SwapArea]:
    """Parse the text of `_text`; names have no blanks, and the priority follows the last colon."""
    pairs = [word.rpartition(":") for word in text.split() if word != OFF]
    return [SwapArea(name=name, priority=int(priority)) for name, _, priority in pairs]


def _why_not_off(files: FileTree, areas: list[SwapArea]) -> str:
    deleted = [area.path for area in areas if area.name.endswith("\\040(deleted)")]
    if deleted:
        return f"{deleted[0]}: a deleted swap file could not be enabled again"
    missing = missing_programs(files, "swapoff", "swapon")
    if missing:
        return missing
    total_kib, available_kib = amount_kib(files, "MemTotal"), amount_kib(files, "MemAvailable")
    if total_kib is None or available_kib is None:
        return "/proc/meminfo does not report available memory"
    used_kib, spare_kib = sum(area.used_kib for area in areas), total_kib * _SPARE_SHARE
    if available_kib < used_kib + spare_kib:
        return (
            f"its {gib(used_kib)} do not fit into {gib(available_kib)} of available memory with "
            f"{gib(spare_kib)} to spare"
        )
    return ""


SWAP_KNOB: Final[Knob] = _Swap()


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


WATCHDOGS_KNOB: Final[Knob] = FileKnob(name="watchdogs", requested=_watchdog_values)


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


PERF_RATE_KNOB: Final[Knob] = _PerfRate(
    name="perf-rate",
    requested=lambda _machine, _request: RequestedValues(values={SHARE: "1", RATE: "1"}),
)
