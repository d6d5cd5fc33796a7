"""Compute mode of NVIDIA's cards: one process only."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.gpu.answer import Answer
from torchyard.machine.gpu.nvidia import COMPUTE_MODES
from torchyard.machine.gpu.nvidia_knob import CardWant, NvidiaCard, NvidiaKnob
from torchyard.machine.knob import Knob

__all__ = ["KNOB"]

_EXCLUSIVE: Final = "exclusive process"
_NUMBERS: Final = {name: number for number, name in COMPUTE_MODES.items()}


def _mode(card: NvidiaCard) -> Answer[str]:
    found = card.ask("nvmlDeviceGetComputeMode")
    if found.value is not None and int(found.value) not in COMPUTE_MODES:
        return Answer(because=f"NVML says mode {found.value}, which has no name here")
    return found.map(lambda mode: COMPUTE_MODES[int(mode)])


def _wants(card: NvidiaCard, wish: Wish) -> CardWant:  # noqa: ARG001
    found = _mode(card)
    if found.value == "prohibited":
        return CardWant(because="somebody forbade computing on it")
    return CardWant(found=found.value, wanted=_EXCLUSIVE, because=found.because)


def _put(card: NvidiaCard, value: str) -> None:
    card.order("nvmlDeviceSetComputeMode", _NUMBERS[value])


KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-compute-mode",
    about="NVIDIA cards take one process at a time",
    why=(
        "Keeps other users off the card: their programs fail instead of sharing it. So does a "
        "comparison of two interpreters, which holds two processes on the card. It is left alone "
        "unless asked for."
    ),
    effect="medium",
    property="compute-mode",
    wants=_wants,
    value_of=_mode,
    put=_put,
    default=False,
)
