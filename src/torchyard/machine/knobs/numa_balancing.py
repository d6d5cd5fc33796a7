"""Automatic moving of memory between nodes (`kernel.numa_balancing`)."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.file_knob import FileKnob, Wants
from torchyard.machine.knob import Knob, Machine

__all__ = ["KNOB"]

PLACE: Final = "proc/sys/kernel/numa_balancing"


def _wants(machine: Machine, wish: Wish) -> Wants:  # noqa: ARG001
    found = machine.files.read(PLACE)
    if found.value is None:
        return Wants(unavailable=f"this kernel does not balance memory ({found.because})")
    return Wants(values={PLACE: "0"})


KNOB: Final[Knob] = FileKnob(
    name="numa-balancing",
    about="moving of memory between nodes",
    why=(
        "The kernel unmaps pages now and then to see which node touches them, and moves them: "
        "faults and copies in the middle of a measurement. Off, memory stays on the node that "
        "touched it first, so threads that moved away from it stay slow: pin them."
    ),
    effect="medium",
    wants=_wants,
)
