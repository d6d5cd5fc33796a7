"""Graphics clock of NVIDIA's cards: a lock on Volta and newer, application clocks before.

NVML sets a lock and has no call that reads one. What can be known, and is used here:

- Found: a card that shows "clocks set by a user" among its event reasons is held by somebody, by a
  lock or by application clocks. It is left alone, since it could not be put back. Any other card
  counts as unlocked, and is put back by a reset, after which it is unlocked.
- Present: the clock that the card runs at (`seen at 1590 MHz`). It contradicts a lock when it lies
  elsewhere without an excuse: an idle card may sleep, a card at its limits may run lower. It never
  contradicts `unlocked`.

Application clocks can be read, so there everything is exact.
"""

from __future__ import annotations

import re
import time
from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.gpu.answer import Answer
from torchyard.machine.gpu.clock_choice import chosen_clock, nearest
from torchyard.machine.gpu.event_reasons import (
    HOLDS_DOWN,
    IDLE,
    USER_SETTING,
    read_event_bits,
    reasons_of,
)
from torchyard.machine.gpu.nvidia import GRAPHICS, MEMORY, SM, supported_sm_clocks
from torchyard.machine.gpu.nvidia_knob import CardWant, NvidiaCard, NvidiaKnob
from torchyard.machine.knob import Knob

__all__ = ["KNOB", "UNLOCKED", "same_clock", "seen_clock"]

UNLOCKED: Final = "unlocked"
_LOCKED: Final = re.compile(r"(\d+) MHz")
_SEEN: Final = re.compile(r"seen at (\d+) MHz(?:, (.+))?")
_APPLICATION: Final = re.compile(r"memory (\d+) MHz, graphics (\d+) MHz")
_TOLERANCE_MHZ: Final = 15
"""One step of the clock."""
_VOLTA: Final = 5
_SETTLE_S: Final = 1.0
_NOTE: Final = (
    "NVML cannot read a clock lock: the card counts as unlocked, and `restore` unlocks it; "
    "set a lock of your own again afterwards"
)


def _wants(card: NvidiaCard, wish: Wish) -> CardWant:
    highest = card.ask("nvmlDeviceGetMaxClockInfo", more=(SM,))
    if highest.value is None:
        return CardWant(because=f"its highest clock cannot be read: {highest.because}")
    supported = supported_sm_clocks(card.nvml, card.handle).value or ()
    promised = card.ask("nvmlDeviceGetDefaultApplicationsClock", more=(GRAPHICS,)).value
    notes: list[str] = []
    if wish.gpu_clock_mhz is None:
        clock = chosen_clock(
            highest_mhz=highest.value, promised_mhz=promised, supported_mhz=supported
        )
        share = 100 * clock / highest.value
        notes.append(f"{clock} MHz is {share:.0f} % of its highest clock; --gpu-clock chooses")
    else:
        clock = nearest(wish.gpu_clock_mhz, supported)
        if clock != wish.gpu_clock_mhz:
            notes.append(f"has no clock of {wish.gpu_clock_mhz} MHz: {clock} MHz is the nearest")
    architecture = card.ask("nvmlDeviceGetArchitecture").value
    if architecture is not None and architecture < _VOLTA:
        return _application_want(card, clock, notes)
    reasons = read_event_bits(card.nvml, card.handle).map(reasons_of)
    if USER_SETTING in (reasons.value or ()):
        return CardWant(
            because="somebody holds its clocks already, which could not be put back; "
            "`nvidia-smi -rgc` and `nvidia-smi -rac` let go"
        )
    return CardWant(found=UNLOCKED, wanted=f"{clock} MHz", notes=(*notes, _NOTE))


def _application_want(card: NvidiaCard, clock: int, notes: list[str]) -> CardWant:
    found = _application_clocks(card)
    if found.value is None:
        return CardWant(because=f"it is older than clock locks, and {found.because}")
    memory = card.ask("nvmlDeviceGetMaxClockInfo", more=(MEMORY,)).value
    parts = _APPLICATION.fullmatch(found.value)
    wanted = f"memory {memory or (parts and parts[1])} MHz, graphics {clock} MHz"
    notes.append("older than clock locks: application clocks are set instead")
    return CardWant(found=found.value, wanted=wanted, notes=tuple(notes))


def _application_clocks(card: NvidiaCard) -> Answer[str]:
    graphics = card.ask("nvmlDeviceGetApplicationsClock", more=(GRAPHICS,))
    memory = card.ask("nvmlDeviceGetApplicationsClock", more=(MEMORY,))
    if memory.value is None:
        return Answer(because=memory.because)
    return graphics.map(lambda clock: f"memory {memory.value} MHz, graphics {clock} MHz")


def seen_clock(card: NvidiaCard, kind: int) -> Answer[str]:
    """The clock that the card runs at, with its excuse when it has one."""
    clock = card.ask("nvmlDeviceGetClockInfo", more=(kind,))
    reasons = read_event_bits(card.nvml, card.handle).map(reasons_of).value or ()
    excuses = [reason for reason in reasons if reason == IDLE or reason in HOLDS_DOWN]
    behind = f", {' and '.join(excuses)}" if excuses else ""
    return clock.map(lambda mhz: f"seen at {mhz} MHz{behind}")


def _value_of(card: NvidiaCard) -> Answer[str]:
    architecture = card.ask("nvmlDeviceGetArchitecture").value
    if architecture is not None and architecture < _VOLTA:
        return _application_clocks(card)
    return seen_clock(card, SM)


def _put(card: NvidiaCard, value: str) -> None:
    application = _APPLICATION.fullmatch(value)
    if application:
        _put_application(card, int(application[1]), int(application[2]))
        return
    locked = _LOCKED.fullmatch(value)
    if locked is None:
        card.order("nvmlDeviceResetGpuLockedClocks")
        return
    card.order("nvmlDeviceSetGpuLockedClocks", int(locked[1]), int(locked[1]))
    deadline = time.monotonic() + _SETTLE_S
    while not same_clock(seen_clock(card, SM).value or value, value):
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _put_application(card: NvidiaCard, memory: int, graphics: int) -> None:
    default = [
        card.ask("nvmlDeviceGetDefaultApplicationsClock", more=(kind,)).value
        for kind in (MEMORY, GRAPHICS)
    ]
    if default == [memory, graphics]:
        # Setting the default would hold the clocks there; a reset lets them boost again.
        card.order("nvmlDeviceResetApplicationsClocks")
    else:
        card.order("nvmlDeviceSetApplicationsClocks", memory, graphics)


def same_clock(one: str, other: str) -> bool:
    """Whether they agree; a clock that was seen agrees with what it does not contradict."""
    if one == other:
        return True
    for seen, said in ((one, other), (other, one)):
        sight = _SEEN.fullmatch(seen)
        if sight is None:
            continue
        if said == UNLOCKED:
            return True
        lock = _LOCKED.fullmatch(said) or _SEEN.fullmatch(said)
        if lock is None:
            return False
        above = int(sight[1]) - int(lock[1])
        return abs(above) <= _TOLERANCE_MHZ or (bool(sight[2]) and above < 0)
    return False


KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-clocks",
    about="NVIDIA cards run at one graphics clock",
    why=(
        "A free clock follows temperature, power and the numbers that are multiplied, by several "
        "percent. A lock below the card's limits makes kernels take the same time every time. "
        "Kernels get slower, all of them alike, unless memory or the processor is what they wait "
        "for: compare numbers with the same lock only."
    ),
    effect="large",
    property="graphics-clock",
    wants=_wants,
    value_of=_value_of,
    put=_put,
    same_value=same_clock,
)
