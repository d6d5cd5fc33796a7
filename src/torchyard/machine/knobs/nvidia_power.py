"""Power limit of NVIDIA's cards, back at the maker's default where somebody lowered or raised it."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.gpu.answer import Answer
from torchyard.machine.gpu.nvidia_knob import CardWant, NvidiaCard, NvidiaKnob
from torchyard.machine.knob import Knob

__all__ = ["KNOB"]


def _limit(card: NvidiaCard) -> Answer[str]:
    # The limit that was asked for, not the one enforced now: only the former can be put back.
    return card.ask("nvmlDeviceGetPowerManagementLimit").map(_text)


def _wants(card: NvidiaCard, wish: Wish) -> CardWant:  # noqa: ARG001
    found = _limit(card)
    default = card.ask("nvmlDeviceGetPowerManagementDefaultLimit").map(_text)
    if found.value is None or default.value is None:
        return CardWant(because=found.because or default.because)
    return CardWant(found=found.value, wanted=default.value)


def _put(card: NvidiaCard, value: str) -> None:
    card.order("nvmlDeviceSetPowerManagementLimit", int(value.removesuffix(" mW")))


def _text(milliwatts: int) -> str:
    return f"{milliwatts} mW"


KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-power",
    about="NVIDIA cards may draw the power they were made for",
    why=(
        "A lowered limit holds the clock down under load, so numbers do not compare with other "
        "cards of the type. Somebody may have lowered it for a reason (supply, heat, noise): it is "
        "left alone unless asked for."
    ),
    effect="medium",
    property="power-limit",
    wants=_wants,
    value_of=_limit,
    put=_put,
    default=False,
)
