"""GPU clocks: lock the clocks of NVIDIA GPUs, cap the graphics clock of AMD GPUs.

NVIDIA graphics clock: a lock on Volta and newer, application clocks before. NVML sets a lock and
has no call that reads one. What can be known, and is used here:

- Found: a card with "clocks set by a user" among its event reasons is already fixed, by a lock
  or by application clocks. It is skipped, since it could not be restored. Any other card
  counts as unlocked, and is restored by a reset, after which it is unlocked.
- Present: the clock that the card runs at (`seen at 1590 MHz`). It contradicts a lock when it
  lies elsewhere without an excuse: an idle card may sleep, a card at its limits may run lower. It
  never contradicts `unlocked`.

Application clocks can be read, so there everything is exact. The memory clock (Ampere and newer) is
locked to the highest, with the same limitation.

AMD: performance level `perf_determinism` with an upper limit. The kernel takes the level and the
limit one after the other, through two files, and a change of level resets the limit. Both are
therefore one setting: `auto 500-1700`. Which chips accept it is known only in part (MI200 do, MI300
depends on the part, MI350 and RDNA do not): the level is read back, and a card that refuses is
restored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from torchyard.errors import MissingTool, TorchyardError
from torchyard.machine.gpu.amd import AmdGpu, card_at, graphics_limits, read_amd
from torchyard.machine.gpu.nvidia import (
    GRAPHICS,
    HOLDS_DOWN,
    IDLE,
    MEMORY,
    SM,
    USER_SETTING,
    read_event_bits,
    reasons_of,
    supported_sm_clocks,
)
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.knobs.nvidia_settings import (
    CardRequest,
    NvidiaCard,
    NvidiaKnob,
    used_by_others,
)
from torchyard.machine.model import KnobState, Profile, QuietRequest, Setting
from torchyard.machine.system.file_tree import Answer

SHARE_OF_HIGHEST: Final = 0.7
"""A card does not sustain its maximum clock when it gets warm or reaches its power limit. On an H200
(maximum clock 1980 MHz, limit 700 W) products of 8192 x 8192 bfloat16 matrices ran at 1455 to 1545
MHz, 73 to 78 % of the maximum, with the power cap as the reason of all 149 readings: the 80 % that
XLA's guide uses for the A100 would be too high there. Cards whose default application clock (the
vendor's clock for full load) is lower still are locked to that: 585 of 1590 MHz on a T4. No
guarantee: a card that draws more power per clock reaches its limit below this clock, and the clock
event reasons of its blocks then show it."""
_STEP_MHZ: Final = 15
"""NVIDIA clocks are multiples of this, if the card lists none."""


def chosen_clock(
    *, highest_mhz: int, promised_mhz: int | None, supported_mhz: Sequence[int]
) -> int:
    """Return the highest supported clock that the card can sustain."""
    target = SHARE_OF_HIGHEST * highest_mhz
    if promised_mhz:
        target = min(target, promised_mhz)
    if not supported_mhz:
        return max(_STEP_MHZ, int(target) // _STEP_MHZ * _STEP_MHZ)
    return max((clock for clock in supported_mhz if clock <= target), default=min(supported_mhz))


def nearest(requested_mhz: int, supported_mhz: Sequence[int]) -> int:
    """Return the supported clock nearest to the requested one; the lower of two equally near."""
    return min(
        sorted(supported_mhz), key=lambda clock: abs(clock - requested_mhz), default=requested_mhz
    )


UNLOCKED: Final = "unlocked"
_LOCKED: Final = re.compile(r"(\d+) MHz")
_SEEN: Final = re.compile(r"seen at (\d+) MHz(?:, (.+))?")
_APPLICATION: Final = re.compile(r"memory (\d+) MHz, graphics (\d+) MHz")
_TOLERANCE_MHZ: Final = 15
"""One step of the clock."""
_VOLTA: Final = 5
_SETTLE_S: Final = 1.0
_NOTE: Final = (
    "NVML cannot read a clock lock: the card is assumed to be unlocked, and `restore` unlocks it; "
    "set your own lock again afterwards"
)


def _graphics_request(card: NvidiaCard, request: QuietRequest) -> CardRequest:
    highest = card.ask("nvmlDeviceGetMaxClockInfo", more=(SM,))
    if highest.value is None:
        return CardRequest(because=f"cannot read its maximum clock: {highest.because}")
    supported = supported_sm_clocks(card.nvml, card.handle).value or ()
    promised = card.ask("nvmlDeviceGetDefaultApplicationsClock", more=(GRAPHICS,)).value
    notes: list[str] = []
    if request.gpu_clock_mhz is None:
        clock = chosen_clock(
            highest_mhz=highest.value, promised_mhz=promised, supported_mhz=supported
        )
        share = 100 * clock / highest.value
        notes.append(
            f"{clock} MHz is {share:.0f} % of its maximum clock; change it with --gpu-clock"
        )
    else:
        clock = nearest(request.gpu_clock_mhz, supported)
        if clock != request.gpu_clock_mhz:
            notes.append(
                f"does not support {request.gpu_clock_mhz} MHz: using {clock} MHz, the nearest"
            )
    architecture = card.ask("nvmlDeviceGetArchitecture").value
    if architecture is not None and architecture < _VOLTA:
        return _application_request(card, clock, notes)
    reasons = read_event_bits(card.nvml, card.handle).map(reasons_of)
    if USER_SETTING in (reasons.value or ()):
        return CardRequest(
            because="its clocks are locked already, and the lock could not be restored; "
            "`nvidia-smi -rgc` and `nvidia-smi -rac` release it"
        )
    return CardRequest(present=UNLOCKED, requested=f"{clock} MHz", notes=(*notes, _NOTE))


def _application_request(card: NvidiaCard, clock: int, notes: list[str]) -> CardRequest:
    clocks = _application_clocks(card)
    if clocks.value is None:
        return CardRequest(because=f"it does not support clock locks, and {clocks.because}")
    memory = card.ask("nvmlDeviceGetMaxClockInfo", more=(MEMORY,)).value
    parts = _APPLICATION.fullmatch(clocks.value)
    requested = f"memory {memory or (parts and parts[1])} MHz, graphics {clock} MHz"
    notes.append("no clock locks before Volta: application clocks are set instead")
    return CardRequest(present=clocks.value, requested=requested, notes=tuple(notes))


def _application_clocks(card: NvidiaCard) -> Answer[str]:
    graphics = card.ask("nvmlDeviceGetApplicationsClock", more=(GRAPHICS,))
    memory = card.ask("nvmlDeviceGetApplicationsClock", more=(MEMORY,))
    if memory.value is None:
        return Answer(because=memory.because)
    return graphics.map(lambda clock: f"memory {memory.value} MHz, graphics {clock} MHz")


def seen_clock(card: NvidiaCard, kind: int) -> Answer[str]:
    """Return the clock that the card runs at, with the reasons that explain a lower one."""
    clock = card.ask("nvmlDeviceGetClockInfo", more=(kind,))
    reasons = read_event_bits(card.nvml, card.handle).map(reasons_of).value or ()
    explanations = [reason for reason in reasons if reason == IDLE or reason in HOLDS_DOWN]
    suffix = f", {' and '.join(explanations)}" if explanations else ""
    return clock.map(lambda mhz: f"seen at {mhz} MHz{suffix}")


def _value_of(card: NvidiaCard) -> Answer[str]:
    architecture = card.ask("nvmlDeviceGetArchitecture").value
    if architecture is not None and architecture < _VOLTA:
        return _application_clocks(card)
    return seen_clock(card, SM)


def _put_graphics(card: NvidiaCard, value: str) -> None:
    application = _APPLICATION.fullmatch(value)
    if application:
        _put_application(card, int(application[1]), int(application[2]))
        return
    locked = _LOCKED.fullmatch(value)
    if locked is None:
        card.call("nvmlDeviceResetGpuLockedClocks")
        return
    card.call("nvmlDeviceSetGpuLockedClocks", int(locked[1]), int(locked[1]))
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
        # Setting the default would fix the clocks there; a reset lets them boost again.
        card.call("nvmlDeviceResetApplicationsClocks")
    else:
        card.call("nvmlDeviceSetApplicationsClocks", memory, graphics)


def same_clock(one: str, other: str) -> bool:
    """Whether two values agree; an observed clock agrees with a lock it does not contradict."""
    if one == other:
        return True
    for value, stated in ((one, other), (other, one)):
        observed = _SEEN.fullmatch(value)
        if observed is None:
            continue
        if stated == UNLOCKED:
            return True
        lock = _LOCKED.fullmatch(stated) or _SEEN.fullmatch(stated)
        if lock is None:
            return False
        above = int(observed[1]) - int(lock[1])
        return abs(above) <= _TOLERANCE_MHZ or (bool(observed[2]) and above < 0)
    return False


GRAPHICS_CLOCK_KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-clocks",
    property="graphics-clock",
    requested=_graphics_request,
    value_of=_value_of,
    change=_put_graphics,
    same_value=same_clock,
)


_AMPERE: Final = 7


def _memory_request(card: NvidiaCard, request: QuietRequest) -> CardRequest:  # noqa: ARG001
    architecture = card.ask("nvmlDeviceGetArchitecture").value
    if architecture is not None and architecture < _AMPERE:
        return CardRequest(because="memory clock locks need Ampere or newer")
    clocks = card.ask("nvmlDeviceGetSupportedMemoryClocks")
    if not clocks.value:
        return CardRequest(because=clocks.because or "it reports no memory clocks")
    if len(clocks.value) == 1:
        return CardRequest(because=f"its memory has only one clock, {clocks.value[0]} MHz")
    return CardRequest(
        present=UNLOCKED,
        requested=f"{max(clocks.value)} MHz",
        notes=("NVML cannot read a memory lock: `restore` unlocks it",),
    )


def _put_memory(card: NvidiaCard, value: str) -> None:
    locked = _LOCKED.fullmatch(value)
    if locked is None:
        card.call("nvmlDeviceResetMemoryLockedClocks")
    else:
        card.call("nvmlDeviceSetMemoryLockedClocks", int(locked[1]), int(locked[1]))


MEMORY_CLOCK_KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-memory-clock",
    property="memory-clock",
    requested=_memory_request,
    value_of=lambda card: seen_clock(card, MEMORY),
    change=_put_memory,
    same_value=same_clock,
)


_DETERMINISM: Final = "perf_determinism"
_KEEPS_LIMITS: Final = (_DETERMINISM, "manual")
"""Levels whose limits the user sets; at all others the driver sets them."""
_VALUE: Final = re.compile(r"(\w+) (\d+)-(\d+)")
_UNSUPPORTED_CHIPS: Final[dict[str, str]] = {
    "gfx95": "its driver does not support perf_determinism (MI350)",
    "gfx10": "RDNA cards do not support perf_determinism",
    "gfx11": "RDNA cards do not support perf_determinism",
    "gfx12": "RDNA cards do not support perf_determinism",
}
"""Prefix of the chip's name -> why it is unsupported."""
_AMD_STEP_MHZ: Final = 10


@dataclass(frozen=True, kw_only=True)
class AmdDeterminism(Knob):
    """One setting per AMD card, at `gpu/ADDRESS/determinism`."""

    name: str = "amd-determinism"
    profile: Profile = "gpu"

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Survey every card; an unsupported one becomes a note, and all of them a reason."""
        settings: list[Setting] = []
        notes: list[str] = []
        for card in read_amd(machine.files):
            because = self._refusal(card, request)
            level, limits = card.performance_level.value, card.graphics_limits_mhz.value
            if because or level is None or limits is None:
                because = because or card.performance_level.because
                because = because or card.graphics_limits_mhz.because
                notes.append(f"{card.card}: skipped, because {because}")
                continue
            cap = _cap(card, request)
            notes.append(
                f"{card.card}: support for perf_determinism is known only after writing it"
            )
            settings.append(
                self.setting(
                    f"gpu/{card.address}/determinism",
                    f"{level} {limits[0]}-{limits[1]}",
                    f"{_DETERMINISM} {limits[0]}-{cap}",
                )
            )
        if not settings:
            return self.unavailable("; ".join(notes) or "no AMD GPU")
        return self.state(*settings, notes=notes)

    def read(self, machine: Machine, place: str) -> str:
        """Return the present level and limits."""
        card = _card(machine, place)
        level = machine.files.read(f"{card}/device/power_dpm_force_performance_level").or_raise()
        lowest, highest = graphics_limits(machine.files, card).or_raise()
        return f"{level.strip()} {lowest}-{highest}"

    def write(self, machine: Machine, setting: Setting) -> None:
        """Set level and limit; a card that accepts only one of them is restored."""
        if setting.wanted is None:
            return
        try:
            self.put(machine, setting.place, setting.wanted)
            now = self.read(machine, setting.place)
            if not self.same(setting.place, now, setting.wanted):
                raise MissingTool(f"the card accepted the level, but has {now!r}")
        except TorchyardError:
            with suppress(TorchyardError):
                self.restore(machine, setting)
            raise

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Restore level and limits."""
        with suppress(TorchyardError):
            if self.same(setting.place, self.read(machine, setting.place), setting.found):
                return
        super().restore(machine, setting)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Whether level and upper limit agree, and the lower limit if the user may set it."""
        first, second = _VALUE.fullmatch(one), _VALUE.fullmatch(other)
        if first is None or second is None:
            return one == other
        if first[1] != second[1]:
            return False
        if first[1] == _DETERMINISM:
            return first[3] == second[3]
        return first[1] not in _KEEPS_LIMITS or first.groups() == second.groups()

    def put(self, machine: Machine, place: str, value: str) -> None:
        """Set the level, and its limits where the user sets them."""
        parts = _VALUE.fullmatch(value)
        if parts is None:
            raise MissingTool(f"{value!r} is not a level with limits")
        device = f"{_card(machine, place)}/device"
        level, lowest, highest = parts.groups()
        machine.files.write(f"{device}/power_dpm_force_performance_level", level)
        if level not in _KEEPS_LIMITS:
            return
        table = f"{device}/pp_od_clk_voltage"
        if level != _DETERMINISM:  # which has no lower limit
            machine.files.write(table, f"s 0 {lowest}")
        machine.files.write(table, f"s 1 {highest}")
        machine.files.write(table, "c")

    def _refusal(self, card: AmdGpu, request: QuietRequest) -> str:
        chip = card.chip.value or ""
        for start, because in _UNSUPPORTED_CHIPS.items():
            if chip.startswith(start):
                return because
        if self.name in (*request.only, *request.also):
            return ""
        return used_by_others(card.processes.value or (), self.name)


def _cap(card: AmdGpu, request: QuietRequest) -> int:
    """Return the requested clock within the card's range, or a share of its maximum clock."""
    limits = card.graphics_limits_mhz.value or (0, 0)
    # At `auto` the limits are the chip's own; at other levels the states may cover more.
    highest = max(limits[1], card.max_graphics_clock_mhz.value or 0)
    if request.gpu_clock_mhz is not None:
        return min(max(request.gpu_clock_mhz, limits[0]), highest)
    return int(SHARE_OF_HIGHEST * highest) // _AMD_STEP_MHZ * _AMD_STEP_MHZ


def _card(machine: Machine, place: str) -> str:
    address = place.split("/")[1]
    card = card_at(machine.files, address)
    if card is None:
        raise MissingTool(f"no AMD GPU at {address}", hint="check that its driver is loaded")
    return card


AMD_DETERMINISM_KNOB: Final[Knob] = AmdDeterminism()
