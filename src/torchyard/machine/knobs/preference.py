"""What the hardware is told to prefer, speed or power: EPP of a policy, EPB of a processor."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.clock_policy import CPU, ProcessorKnob, policies
from torchyard.machine.file_knob import Wants, same_text
from torchyard.machine.knob import Knob, Machine

__all__ = ["KNOB"]

_BIAS: Final = "energy_perf_bias"
_PREFERENCE: Final = "energy_performance_preference"
_BIAS_OF_WORD: Final = {
    "performance": "0",
    "balance-performance": "4",
    "normal": "6",
    "balance-power": "8",
    "power": "15",
}
"""arch/x86/kernel/cpu/intel_epb.c takes words and numbers, and always shows the number."""


def _wants(machine: Machine, wish: Wish) -> Wants:  # noqa: ARG001
    files = machine.files
    values: dict[str, str | None] = {
        path: "performance"
        for policy in policies(files)
        if files.exists(path := f"{policy}/{_PREFERENCE}")
    }
    # Both where there are both: which one a processor follows depends on its model. On models where
    # the preference is only another name of the bias, the exact bias has to come back first and the
    # preference then needs no write; a restore goes backwards, so the bias stands last.
    values |= dict.fromkeys(files.paths(f"{CPU}/cpu[0-9]*/power/{_BIAS}"), "0")
    if not values:
        return Wants(unavailable=f"no policy has {_PREFERENCE} and no processor has {_BIAS}")
    return Wants(values=values)


def _same(place: str, one: str, other: str) -> bool:
    if place.endswith(_BIAS):
        return _BIAS_OF_WORD.get(one, one) == _BIAS_OF_WORD.get(other, other)
    return same_text(place, one, other)


KNOB: Final[Knob] = ProcessorKnob(
    name="preference",
    about="what the hardware prefers: speed or power",
    why=(
        "Where the hardware chooses the clock itself, this decides how fast and how far it rises. "
        "A balanced preference lowers clocks between kernels. Costs power."
    ),
    effect="medium",
    wants=_wants,
    same_value=_same,
)
