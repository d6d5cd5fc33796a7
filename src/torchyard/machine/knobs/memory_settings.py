"""Memory settings of the machine: huge pages, NUMA balancing, swap, ASLR.

Swap is off while measuring if memory suffices, and hardly used otherwise. `swapon` cannot request
the negative priorities that the kernel assigns by itself, counting down from -2. They come back
when the areas are switched on in the same order, so all areas are one setting, the last one goes
off first, and a partial switch-off loses nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from torchyard.errors import MissingTool
from torchyard.machine.knob import FileKnob, Knob, Machine, Reach, RequestedValues, chosen_word
from torchyard.machine.model import Effect, KnobState, Profile, Setting, Wish
from torchyard.machine.system.file_tree import FileTree
from torchyard.machine.system.programs import run_program, why_no_program

_HUGE_PAGES_FOLDER: Final = "sys/kernel/mm/transparent_hugepage"
ENABLED: Final = f"{_HUGE_PAGES_FOLDER}/enabled"
DEFRAG: Final = f"{_HUGE_PAGES_FOLDER}/defrag"


def _huge_pages_wants(machine: Machine, request: Wish) -> RequestedValues:
    enabled = machine.files.read(ENABLED)
    if enabled.value is None:
        return RequestedValues(
            unavailable=f"this kernel has no transparent huge pages ({enabled.because})"
        )
    defrag = machine.files.read(DEFRAG).value or ""
    if request.huge_pages == "keep":
        return RequestedValues(
            values={
                ENABLED: chosen_word(ENABLED, enabled.value),
                DEFRAG: chosen_word(DEFRAG, defrag),
            },
            notes=("kept as it is, and recorded: ask for always, madvise or never",),
        )
    if request.huge_pages == "never":
        return RequestedValues(values={ENABLED: "never"})
    # Making room at the fault that asks: otherwise whether a page is huge depends on how
    # fragmented the memory is at that moment, which differs from launch to launch.
    return RequestedValues(values={ENABLED: request.huge_pages, DEFRAG: request.huge_pages})


HUGE_PAGES_KNOB: Final[Knob] = FileKnob(
    name="huge-pages",
    about="transparent huge pages",
    why=(
        "Whether memory is in huge pages changes how fast it is, so both sides of a comparison "
        "need the same. The value of the distribution is kept and recorded unless another is "
        "asked for, because it is part of what is measured. With `always` and `madvise` the "
        "kernel makes room at the fault: fewer surprises while measuring, slower first touches."
    ),
    effect="medium",
    wants=_huge_pages_wants,
    value_of=chosen_word,
)


NUMA_BALANCING_PLACE: Final = "proc/sys/kernel/numa_balancing"


def _numa_balancing_wants(machine: Machine, request: Wish) -> RequestedValues:  # noqa: ARG001
    found = machine.files.read(NUMA_BALANCING_PLACE)
    if found.value is None:
        return RequestedValues(unavailable=f"this kernel does not balance memory ({found.because})")
    return RequestedValues(values={NUMA_BALANCING_PLACE: "0"})


NUMA_BALANCING_KNOB: Final[Knob] = FileKnob(
    name="numa-balancing",
    about="moving of memory between nodes",
    why=(
        "The kernel unmaps pages now and then to see which node touches them, and moves them: "
        "faults and copies in the middle of a measurement. Off, memory stays on the node that "
        "touched it first, so threads that moved away from it stay slow: pin them."
    ),
    effect="medium",
    wants=_numa_balancing_wants,
)


ASLR_PLACE: Final = "proc/sys/kernel/randomize_va_space"

FULL: Final = "2"
"""Stack, libraries, mappings and heap: the kernel's default."""
NONE: Final = "0"


def _aslr_wants(machine: Machine, request: Wish) -> RequestedValues:  # noqa: ARG001
    if request.randomize == "keep":
        return RequestedValues(notes=("kept as it is: ask with --aslr on or --aslr off",))
    return RequestedValues(values={ASLR_PLACE: FULL if request.randomize == "on" else NONE})


ASLR_KNOB: Final[Knob] = FileKnob(
    name="aslr",
    about="address randomisation of new processes",
    why=(
        "Every process draws its own memory layout and keeps it, so processes of the same code "
        "differ. Off freezes one layout: processes agree, the bias of that layout stays, and "
        "attacks on this machine get easier. On draws many layouts, which honest averages over "
        "processes need. Tools disagree, so it is left alone unless asked for."
    ),
    effect="medium",
    wants=_aslr_wants,
    default=False,
)


SWAPS: Final = "proc/swaps"
SWAPPINESS: Final = "proc/sys/vm/swappiness"
OFF: Final = "off"

_SPARE_SHARE: Final = 0.1
"""Of the memory, what must be available beyond what comes back from swap."""
_LIMIT_S: Final = 600.0
"""Reading gigabytes back from a slow disk takes minutes."""
_NOT_SHOWN: Final = (
    "the kernel shows no option `discard` of swap: one that was set does not come back"
)


@dataclass(frozen=True, kw_only=True)
class _Area:
    name: str
    """As /proc/swaps writes it: blanks as \\040."""
    used_bytes: int
    priority: int

    @property
    def path(self) -> str:
        return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), self.name)


@dataclass(frozen=True, kw_only=True)
class _Swap:
    name: str = "swap"
    about: str = "swap areas and how eagerly they are used"
    why: str = (
        "Memory that went to disk comes back in the middle of a measurement. Off, nothing can go; "
        "a machine that runs out of memory then ends a process instead of getting slow."
    )
    profile: Profile = "cpu"
    effect: Effect = "small"
    reach: Reach = "machine"
    needs_root: bool = True
    default: bool = True

    def survey(self, machine: Machine, request: Wish) -> KnobState:  # noqa: ARG002
        """All areas as one setting; only how eagerly they are used when they must stay on."""
        files = machine.files
        found = files.read(SWAPS)
        if found.value is None:
            return KnobState(knob=self.name, unavailable=found.because)
        areas = _areas(found.value)
        if not areas:
            return KnobState(knob=self.name, notes=("no swap is on",))
        settings: list[Setting] = []
        reason = _why_not_off(files, areas)
        if not reason:
            settings.append(Setting(knob=self.name, place=SWAPS, found=_text(areas), wanted=OFF))
        eagerness = files.read(SWAPPINESS)
        if eagerness.value is not None:
            # 1 and not 0: with 0 the kernel rather ends processes than use swap at all.
            wanted = str(min(1, eagerness.number or 0))
            settings.append(
                Setting(knob=self.name, place=SWAPPINESS, found=eagerness.value, wanted=wanted)
            )
        notes = (f"swap stays on, because {reason}",) if reason else (_NOT_SHOWN,)
        return KnobState(knob=self.name, settings=tuple(settings), notes=notes)

    def read(self, machine: Machine, place: str) -> str:
        """Areas with their priorities, or the number."""
        found = machine.files.read(place)
        if found.value is None:
            raise MissingTool(f"cannot read {found.because}")
        return _text(_areas(found.value)) if place == SWAPS else found.value

    def write(self, machine: Machine, setting: Setting) -> None:
        """Switch every area off, the last one first."""
        if setting.wanted is None:
            return
        if setting.place != SWAPS:
            machine.files.write(setting.place, setting.wanted)
            return
        for area in reversed(_areas(self._now(machine))):
            run_program(machine.files, "swapoff", area.path, limit_s=_LIMIT_S)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Switch on what is off, with its priority."""
        if setting.place != SWAPS:
            machine.files.write(setting.place, setting.found)
            return
        wanted = _areas_of_text(setting.found)
        self._switch_on(machine, wanted)
        if self.same(SWAPS, self.read(machine, SWAPS), setting.found):
            return
        # Somebody else switched one on or off meanwhile: the kernel counted from another place.
        counted = [area for area in wanted if area.priority < 0]
        on = {area.name for area in _areas(self._now(machine))}
        for area in reversed(counted):
            if area.name in on:
                run_program(machine.files, "swapoff", area.path, limit_s=_LIMIT_S)
        self._switch_on(machine, wanted)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Equal words in any order."""
        return sorted(one.split()) == sorted(other.split())

    def _now(self, machine: Machine) -> str:
        return machine.files.read(SWAPS).value or ""

    def _switch_on(self, machine: Machine, wanted: list[_Area]) -> None:
        on = {area.name for area in _areas(self._now(machine))}
        for area in wanted:
            if area.name not in on:
                priority = ("-p", str(area.priority)) if area.priority >= 0 else ()
                run_program(machine.files, "swapon", *priority, area.path, limit_s=_LIMIT_S)


def _areas(table: str) -> list[_Area]:
    """The areas of /proc/swaps, highest priority first: the order they were switched on in."""
    areas: list[_Area] = []
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) == 5 and words[4].lstrip("-").isdigit():  # noqa: PLR2004  # the columns
            areas.append(
                _Area(name=words[0], used_bytes=int(words[3]) * 1024, priority=int(words[4]))
            )
    return sorted(areas, key=lambda area: -area.priority)


def _text(areas: list[_Area]) -> str:
    return " ".join(f"{area.name}:{area.priority}" for area in areas) or OFF


def _areas_of_text(text: str) -> list[_Area]:
    """What `_text` wrote; names hold no blanks, and the priority is behind the last colon."""
    pairs = [word.rpartition(":") for word in text.split() if word != OFF]
    return [_Area(name=name, used_bytes=0, priority=int(priority)) for name, _, priority in pairs]


def _why_not_off(files: FileTree, areas: list[_Area]) -> str:
    gone = [area.path for area in areas if area.name.endswith("\\040(deleted)")]
    if gone:
        return f"{gone[0]}: what is not there any more could not be switched on again"
    missing = why_no_program(files, "swapoff", "swapon")
    if missing:
        return missing
    amounts: dict[str, int] = {}
    for line in (files.read("proc/meminfo").value or "").splitlines():
        name, _, value = line.partition(":")
        if value.split()[:1] and value.split()[0].isdigit():
            amounts[name] = int(value.split()[0]) * 1024
    if not {"MemTotal", "MemAvailable"} <= amounts.keys():
        return "/proc/meminfo does not say how much memory is available"
    total, available = amounts["MemTotal"], amounts["MemAvailable"]
    used = sum(area.used_bytes for area in areas)
    if available < used + total * _SPARE_SHARE:
        gib = 2**30
        return (
            f"{used / gib:.1f} GiB in it would have to fit into {available / gib:.1f} GiB of "
            f"available memory and leave {total * _SPARE_SHARE / gib:.1f} GiB"
        )
    return ""


SWAP_KNOB: Final[Knob] = _Swap()
