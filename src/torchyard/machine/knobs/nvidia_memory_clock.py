"""Memory clock of NVIDIA's cards, locked to the highest. Ampere and newer.

As with the graphics clock, NVML sets the lock and cannot read it; see `nvidia_clocks.py`.
"""

from __future__ import annotations

import re
from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.gpu.answer import Answer
from torchyard.machine.gpu.nvidia import MEMORY
from torchyard.machine.gpu.nvidia_knob import CardWant, NvidiaCard, NvidiaKnob
from torchyard.machine.knob import Knob
from torchyard.machine.knobs.nvidia_clocks import UNLOCKED, same_clock, seen_clock

__all__ = ["KNOB"]

_AMPERE: Final = 7


def _wants(card: NvidiaCard, wish: Wish) -> CardWant:  # noqa: ARG001
    architecture = card.ask("nvmlDeviceGetArchitecture").value
    if architecture is not None and architecture < _AMPERE:
        return CardWant(because="it is older than locks of the memory clock (Ampere)")
    clocks = card.ask("nvmlDeviceGetSupportedMemoryClocks")
    if not clocks.value:
        return CardWant(because=clocks.because or "it lists no memory clocks")
    if len(clocks.value) == 1:
        return CardWant(because=f"its memory has one clock only, {clocks.value[0]} MHz")
    return CardWant(
        found=UNLOCKED,
        wanted=f"{max(clocks.value)} MHz",
        notes=("NVML cannot read a memory lock: `restore` unlocks it",),
    )


def _seen(card: NvidiaCard) -> Answer[str]:
    return seen_clock(card, MEMORY)


def _put(card: NvidiaCard, value: str) -> None:
    locked = re.fullmatch(r"(\d+) MHz", value)
    if locked is None:
        card.order("nvmlDeviceResetMemoryLockedClocks")
    else:
        card.order("nvmlDeviceSetMemoryLockedClocks", int(locked[1]), int(locked[1]))


KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-memory-clock",
    about="NVIDIA cards run their memory at its highest clock",
    why=(
        "Between kernels the memory clock may fall and takes time to rise. Under load it is at its "
        "highest anyway, so it is left alone unless asked for. Costs power while idle."
    ),
    effect="small",
    property="memory-clock",
    wants=_wants,
    value_of=_seen,
    put=_put,
    same_value=same_clock,
    default=False,
)
