"""Why a GPU's clock is where it is: NVML's bits, by name.

"Clocks event reasons" since driver 535, "throttle reasons" before; the bits are the same.
"""

from __future__ import annotations

from typing import Any, Final

from torchyard.machine.gpu.answer import Answer, ask

__all__ = [
    "HOLDS_DOWN",
    "IDLE",
    "REASONS",
    "THERMAL",
    "USER_SETTING",
    "read_event_bits",
    "reasons_of",
]

IDLE: Final = "idle"
USER_SETTING: Final = "clocks set by a user"
"""Application clocks; NVML's other name for the bit is "user defined clocks"."""

REASONS: Final[dict[int, str]] = {
    0x1: IDLE,
    0x2: USER_SETTING,
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clock",
}

THERMAL: Final = frozenset({"software thermal", "hardware thermal"})
HOLDS_DOWN: Final = THERMAL | {"power cap", "hardware slowdown", "power brake"}
"""Those that take clock away which the card would have given."""


def reasons_of(bits: int) -> tuple[str, ...]:
    """The names of the bits; one that NVML adds later is shown as a number."""
    named = [said for bit, said in REASONS.items() if bits & bit]
    unknown = bits & ~sum(REASONS)
    return (*named, f"{unknown:#x}") if unknown else tuple(named)


def read_event_bits(nvml: Any, handle: Any) -> Answer[int]:
    """The reasons at this moment, as bits."""
    return ask(
        nvml,
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        of=(handle,),
    )
