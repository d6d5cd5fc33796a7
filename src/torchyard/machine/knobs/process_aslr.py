"""Address randomisation of the command alone, through its personality."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Effect, KnobState, Profile, Setting, Wish
from torchyard.errors import NotAllowed
from torchyard.machine.knob import Machine, Reach
from torchyard.machine.process_knob import ProcessKnob, ProcessSetting

__all__ = ["KNOB"]

PLACE: Final = "proc/self/personality"
NO_RANDOMISATION: Final = 0x0040000
_ASK: Final = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class _ProcessAslr:
    name: str = "process-aslr"
    about: str = "address randomisation of the command"
    why: str = (
        "Without randomisation every launch of the same program has the same memory layout: "
        "launches agree better, and all have the bias of that one layout, so two builds may "
        "differ by it alone. Physical pages differ all the same. Needs no root, unlike `aslr`."
    )
    profile: Profile = "cpu"
    effect: Effect = "medium"
    reach: Reach = "process"
    needs_root: bool = False
    default: bool = False

    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """Whether this process was started with it, and the command would be."""
        setting = self.prefix(machine, wish)
        if setting.unavailable:
            return KnobState(knob=self.name, unavailable=setting.unavailable)
        now = self.read(machine, PLACE)
        wanted = now if wish.randomize == "keep" else wish.randomize
        item = Setting(knob=self.name, place=PLACE, found=now, wanted=wanted)
        notes = ("kept as it is: ask with --aslr on or --aslr off",)
        return KnobState(
            knob=self.name, settings=(item,), notes=notes if wish.randomize == "keep" else ()
        )

    def prefix(self, machine: Machine, wish: Wish) -> ProcessSetting:
        """`setarch MACHINE -R` for off; on has no word that every system knows."""
        found = machine.files.read(PLACE)
        if found.value is None:
            return ProcessSetting(unavailable=found.because)
        if wish.randomize == "keep":
            return ProcessSetting()
        if not machine.files.live:
            return ProcessSetting(unavailable="a copy of a machine runs nothing")
        libc = ctypes.CDLL(None, use_errno=True)
        now = libc.personality(ctypes.c_ulong(_ASK))
        off = wish.randomize == "off"
        wanted = now | NO_RANDOMISATION if off else now & ~NO_RANDOMISATION
        if now < 0 or not _takes(libc, wanted, now):
            return ProcessSetting(
                unavailable="the kernel refuses it, as the usual seccomp filters of containers do"
            )

        def choose() -> None:
            if libc.personality(ctypes.c_ulong(wanted)) < 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))

        words = ("setarch", platform.machine(), "-R") if off else ()
        return ProcessSetting(words=words, apply=choose)

    def read(self, machine: Machine, place: str) -> str:
        """Whether the addresses of this process are random."""
        text = machine.files.read(place).value or "0"
        return "off" if int(text, 16) & NO_RANDOMISATION else "on"

    def write(self, machine: Machine, setting: Setting) -> None:  # noqa: ARG002
        """Never called: it ends with the process."""
        raise NotAllowed("this is chosen for a command; `aslr` is for the machine")

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Nothing to put back."""

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Equal words."""
        return one == other


def _takes(libc: ctypes.CDLL, wanted: int, now: int) -> bool:
    """Try it on this thread and take it back: filters let the question pass and refuse the change.

    Harmless here, because it counts from the next program that this thread would become.
    """
    took = libc.personality(ctypes.c_ulong(wanted)) >= 0
    if took:
        libc.personality(ctypes.c_ulong(now))
    return bool(took)


KNOB: Final[ProcessKnob] = _ProcessAslr()
