"""Transparent huge pages of the whole machine: when they are used, and what is done to get one."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.file_knob import FileKnob, Wants, chosen_word
from torchyard.machine.knob import Knob, Machine

__all__ = ["KNOB"]

_FOLDER: Final = "sys/kernel/mm/transparent_hugepage"
ENABLED: Final = f"{_FOLDER}/enabled"
DEFRAG: Final = f"{_FOLDER}/defrag"


def _wants(machine: Machine, wish: Wish) -> Wants:
    enabled = machine.files.read(ENABLED)
    if enabled.value is None:
        return Wants(unavailable=f"this kernel has no transparent huge pages ({enabled.because})")
    defrag = machine.files.read(DEFRAG).value or ""
    if wish.huge_pages == "keep":
        return Wants(
            values={
                ENABLED: chosen_word(ENABLED, enabled.value),
                DEFRAG: chosen_word(DEFRAG, defrag),
            },
            notes=("kept as it is, and recorded: ask for always, madvise or never",),
        )
    if wish.huge_pages == "never":
        return Wants(values={ENABLED: "never"})
    # Making room at the fault that asks: otherwise whether a page is huge depends on how
    # fragmented the memory is at that moment, which differs from launch to launch.
    return Wants(values={ENABLED: wish.huge_pages, DEFRAG: wish.huge_pages})


KNOB: Final[Knob] = FileKnob(
    name="huge-pages",
    about="transparent huge pages",
    why=(
        "Whether memory is in huge pages changes how fast it is, so both sides of a comparison "
        "need the same. The value of the distribution is kept and recorded unless another is "
        "asked for, because it is part of what is measured. With `always` and `madvise` the "
        "kernel makes room at the fault: fewer surprises while measuring, slower first touches."
    ),
    effect="medium",
    wants=_wants,
    value_of=chosen_word,
)
