"""Which processors handle interrupts of devices: those of the house.

Interrupts that belong to one processor, or whose driver spreads them, cannot be moved: such files
are read-only, or the write is refused with EIO (newer kernels: EPERM, seen on 6.18).
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from torchyard.core.machine import KnobState, Setting, Wish
from torchyard.core.processor_lists import cpu_mask, cpus_of_mask
from torchyard.errors import NotAllowed
from torchyard.machine.file_knob import FileKnob, Wants
from torchyard.machine.file_tree import FileTree, WriteRefused
from torchyard.machine.house_cores import house_cores
from torchyard.machine.knob import Knob, Machine

__all__ = ["KNOB", "mask_text", "same_mask"]

DEFAULT: Final = "proc/irq/default_smp_affinity"
GONE: Final = "gone"
"""The value of an interrupt whose device was taken away: nothing is left to put back."""
_HANDLED_BY: Final = " handled by "


def same_mask(place: str, one: str, other: str) -> bool:  # noqa: ARG001
    """Whether two masks name the same processors: `ff` and `00000000,000000ff`."""
    try:
        return cpus_of_mask(_mask_of(one)) == cpus_of_mask(_mask_of(other))
    except ValueError:
        return one == other or GONE in (one, other)


def _mask_of(value: str) -> str:
    return value.partition(_HANDLED_BY)[0]


def mask_text(cpus: tuple[int, ...]) -> str:
    """The mask as the kernel shows it on small machines: `3`, not `00000003`."""
    return cpu_mask(cpus).lstrip("0,") or "0"


@dataclass(frozen=True, kw_only=True)
class _Interrupts(FileKnob):
    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """With each mask the processor of it that handles the interrupt now: `3 handled by 1`."""
        state = super().survey(machine, wish)
        settings = [
            replace(setting, found=setting.found + _handler(machine.files, setting.place))
            for setting in state.settings
        ]
        return replace(state, settings=tuple(settings))

    def read(self, machine: Machine, place: str) -> str:
        """The mask, or that there is no such interrupt any more."""
        if place != DEFAULT and not machine.files.exists(place):
            return GONE
        return super().read(machine, place)

    def write(self, machine: Machine, setting: Setting) -> None:
        """The wanted mask; a refusal says what it means."""
        try:
            super().write(machine, setting)
        except WriteRefused as error:
            if setting.place == DEFAULT or error.code not in (errno.EIO, errno.EPERM):
                raise
            number = setting.place.split("/")[2]
            raise NotAllowed(
                f"interrupt {number} belongs to one processor or to its driver and stays there",
                why=error.what,
            ) from error

    def restore(self, machine: Machine, setting: Setting) -> None:
        """The found mask, if the interrupt is still there.

        Some kernels leave an interrupt where it is when the new mask allows it. So it is sent to
        where it was handled first. Others choose anew, and that is theirs.
        """
        present = self.read(machine, setting.place)
        if present == GONE or self.same(setting.place, present, setting.found):
            return
        mask, _, handler = setting.found.partition(_HANDLED_BY)
        if handler:
            with suppress(WriteRefused):
                machine.files.write(setting.place, handler)
        machine.files.write(setting.place, mask)


def _wants(machine: Machine, wish: Wish) -> Wants:
    files = machine.files
    if not files.exists(DEFAULT):
        return Wants(unavailable="this kernel lets nobody move interrupts (no /proc/irq masks)")
    every = files.paths("proc/irq/[0-9]*/smp_affinity")
    movable = [path for path in every if _offered(files, path)]
    cores = house_cores(files, wish)
    if cores.because:
        return Wants(unavailable=cores.because)
    stay = len(every) - len(movable)
    note = f"{stay} of {len(every)} interrupts belong to one processor or to their driver, and stay"
    return Wants(
        values={
            DEFAULT: mask_text(cores.house),
            **{path: _in_the_house(files, path, cores.house) for path in movable},
        },
        notes=(note,) if stay else (),
    )


def _offered(files: FileTree, path: str) -> bool:
    """Whether the kernel offers the mask for writing to anybody, also when this is not root."""
    try:
        return bool(files.path(path).stat().st_mode & 0o222)
    except OSError:  # gone since the folder was read
        return False


def _handler(files: FileTree, place: str) -> str:
    """The mask of the one processor that handles it; nothing where the kernel does not say."""
    text = files.read(place.replace("/smp_affinity", "/effective_affinity")).value or ""
    return f"{_HANDLED_BY}{text}" if place != DEFAULT and text.strip("0,") else ""


def _in_the_house(files: FileTree, path: str, house: tuple[int, ...]) -> str | None:
    """What is left of its processors, so that it stays near its device; else the whole house."""
    try:
        now = cpus_of_mask(files.read(path).value or "")
    except ValueError:
        return None
    return mask_text(tuple(cpu for cpu in now if cpu in house) or house)


KNOB: Final[Knob] = _Interrupts(
    name="interrupts",
    about="which processors handle interrupts of devices",
    why=(
        "A packet or a finished read stops whatever runs on the processor that gets the "
        "interrupt. Moved to the house, devices disturb measuring cores no more; heavy traffic "
        "may get slower, as fewer processors share it."
    ),
    effect="medium",
    wants=_wants,
    same_value=same_mask,
)
