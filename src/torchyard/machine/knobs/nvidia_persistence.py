"""Persistence mode of NVIDIA's cards: the driver keeps them awake without a user."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.gpu.answer import Answer
from torchyard.machine.gpu.nvidia_knob import CardWant, NvidiaCard, NvidiaKnob
from torchyard.machine.knob import Knob

__all__ = ["KNOB"]

_ON: Final = "on"
_OFF: Final = "off"


def _mode(card: NvidiaCard) -> Answer[str]:
    return card.ask("nvmlDeviceGetPersistenceMode").map(lambda mode: _ON if mode else _OFF)


def _wants(card: NvidiaCard, wish: Wish) -> CardWant:  # noqa: ARG001
    found = _mode(card)
    return CardWant(found=found.value, wanted=_ON, because=found.because)


def _put(card: NvidiaCard, value: str) -> None:
    # Nothing to ask for, then no root is needed either.
    if _mode(card).value != value:
        card.order("nvmlDeviceSetPersistenceMode", int(value == _ON))


KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-persistence",
    about="NVIDIA cards stay awake without a user",
    why=(
        "Without it the driver lets go of the card with its last user. Every new process then "
        "waits for the card to start, and a clock lock is lost. Costs some watts while idle."
    ),
    effect="medium",
    property="persistence",
    wants=_wants,
    value_of=_mode,
    put=_put,
    disturbs=False,
)
