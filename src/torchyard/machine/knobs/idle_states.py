"""Deep idle states switched off one by one, for every processor (`stateK/disable`)."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.clock_policy import CPU, ProcessorKnob
from torchyard.machine.file_knob import Wants
from torchyard.machine.idle_state import allowed_latency_us, idle_states
from torchyard.machine.knob import Knob, Machine

__all__ = ["KNOB"]


def _wants(machine: Machine, wish: Wish) -> Wants:
    states = idle_states(machine.files)
    if not states:
        return Wants(unavailable=f"no processor has idle states below /{CPU}: no idle driver")
    allowed_us = allowed_latency_us(states, wish)
    deep = [state for state in states if state.latency_us > allowed_us]
    if not deep:
        return Wants(unavailable=f"no idle state takes longer than {allowed_us} us")
    names = ", ".join(dict.fromkeys(state.name for state in deep))
    return Wants(
        values={f"{state.folder}/disable": "1" for state in deep},
        notes=(f"longer than {allowed_us} us: {names}",),
    )


KNOB: Final[Knob] = ProcessorKnob(
    name="idle-states",
    about="deep sleep of idle processors, state by state",
    why=(
        "Waking up from a deep state takes tens to hundreds of microseconds, which lands in gaps "
        "between kernels. The knob `idle-latency` does the same through one device and is undone by "
        "the kernel itself should everything be killed, so this one is only used when asked for: "
        "where the device is missing, or where an idle driver does not heed it. Costs power."
    ),
    effect="medium",
    wants=_wants,
    default=False,
)
