"""Which processors do the kernel's deferred work: those of the house.

The kernel shows two masks: `cpumask`, in force, and `cpumask_requested` (newer kernels), from which the
processors of isolated partitions are taken away. What was requested is put back, or a partition
that somebody else had made would cut the mask for good. Writing goes to `cpumask` in both cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Setting, Wish
from torchyard.machine.file_knob import FileKnob, Wants
from torchyard.machine.house_cores import house_cores
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.knobs.interrupts import mask_text, same_mask

__all__ = ["KNOB"]

FOLDER: Final = "sys/devices/virtual/workqueue"
MASK: Final = f"{FOLDER}/cpumask"
REQUESTED: Final = f"{FOLDER}/cpumask_requested"


@dataclass(frozen=True, kw_only=True)
class _Workqueues(FileKnob):
    def restore(self, machine: Machine, setting: Setting) -> None:
        """Hand the found mask back in any case: the one in force may differ from the requested."""
        self._put(machine, setting.place, setting.found)

    @staticmethod
    def _put(machine: Machine, place: str, value: str) -> None:
        machine.files.write(MASK if place == REQUESTED else place, value)


def _wants(machine: Machine, wish: Wish) -> Wants:
    files = machine.files
    if not files.exists(MASK):
        return Wants(unavailable=f"this kernel shows no workqueues (/{MASK} is not there)")
    cores = house_cores(files, wish)
    if cores.because:
        return Wants(unavailable=cores.because)
    first = REQUESTED if files.exists(REQUESTED) else MASK
    places = [first, *files.paths(f"{FOLDER}/*/cpumask")]
    return Wants(
        values=dict.fromkeys(places, mask_text(cores.house)),
        notes=("work that is bound to its processor stays there",),
    )


KNOB: Final[Knob] = _Workqueues(
    name="workqueues",
    about="which processors do the kernel's deferred work",
    why=(
        "Writing dirty pages back and other work of the kernel runs on any processor that is "
        "free, also between two kernels of a benchmark. Kept to the house, it is done there."
    ),
    effect="small",
    wants=_wants,
    same_value=same_mask,
)
