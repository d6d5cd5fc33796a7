"""Address randomisation of the whole machine (`kernel.randomize_va_space`)."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.file_knob import FileKnob, Wants
from torchyard.machine.knob import Knob, Machine

__all__ = ["KNOB"]

PLACE: Final = "proc/sys/kernel/randomize_va_space"

FULL: Final = "2"
"""Stack, libraries, mappings and heap: the kernel's default."""
NONE: Final = "0"


def _wants(machine: Machine, wish: Wish) -> Wants:  # noqa: ARG001
    if wish.randomize == "keep":
        return Wants(notes=("kept as it is: ask with --aslr on or --aslr off",))
    return Wants(values={PLACE: FULL if wish.randomize == "on" else NONE})


KNOB: Final[Knob] = FileKnob(
    name="aslr",
    about="address randomisation of new processes",
    why=(
        "Every process draws its own memory layout and keeps it, so processes of the same code "
        "differ. Off freezes one layout: processes agree, the bias of that layout stays, and "
        "attacks on this machine get easier. On draws many layouts, which honest averages over "
        "processes need. Tools disagree, so it is left alone unless asked for."
    ),
    effect="medium",
    wants=_wants,
    default=False,
)
