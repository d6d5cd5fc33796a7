"""GPU clocks: lock the clocks of NVIDIA GPUs, cap the graphics clock of AMD GPUs.

NVIDIA graphics clock: a lock on Volta and newer, application clocks before. NVML sets a lock and
has no call that reads one. What can be known, and is used here:

- Found: a card with "clocks set by a user" among its event reasons is held by somebody, by a lock
  or by application clocks. It is left alone, since it could not be restored. Any other card
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
from typing import Final

from torchyard.errors import MissingTool, TorchyardError
from torchyard.machine.gpu.amd import AmdGpu, card_at, graphics_limits, read_amd
from torchyard.machine.gpu.library import Answer
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
from torchyard.machine.knob import Knob, Machine, Reach
from torchyard.machine.knobs.nvidia_settings import CardWant, NvidiaCard, NvidiaKnob
from torchyard.machine.model import Effect, KnobState, Profile, Setting, Wish

SHARE_OF_HIGHEST: Final = 0.7
"""A card at its highest clock leaves it again when it gets warm or reaches its power limit. On an
H200 (highest clock 1980 MHz, limit 700 W) products of 8192 x 8192 bfloat16 matrices ran at 1455 to
1545 MHz, 73 to 78 % of the highest, with the power cap as the reason of every one of 149 readings:
the 80 % that XLA's guide uses for the A100 would not hold there. Cards whose default application
clock (what the maker promises at full load) is lower still are locked to that: 585 of 1590 MHz on a
T4. It is no promise: a card that draws more for its clocks reaches its limit below this one, and
then the clock event reasons of its blocks say so."""
_STEP_MHZ: Final = 15
"""What the clocks of NVIDIA's chips are multiples of, where the card lists none."""


def chosen_clock(
    *, highest_mhz: int, promised_mhz: int | None, supported_mhz: Sequence[int]
) -> int:
    """The highest supported clock that is not above what the card can hold."""
    aim = SHARE_OF_HIGHEST * highest_mhz
    if promised_mhz:
        aim = min(aim, promised_mhz)
    if not supported_mhz:
        return max(_STEP_MHZ, int(aim) // _STEP_MHZ * _STEP_MHZ)
    return max((clock for clock in supported_mhz if clock <= aim), default=min(supported_mhz))


def nearest(asked_mhz: int, supported_mhz: Sequence[int]) -> int:
    """The supported clock beside the asked one; the lower of two that are as near."""
    return min(sorted(supported_mhz), key=lambda clock: abs(clock - asked_mhz), default=asked_mhz)


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


def _graphics_wants(card: NvidiaCard, request: Wish) -> CardWant:
    highest = card.ask("nvmlDeviceGetMaxClockInfo", more=(SM,))
    if highest.value is None:
        return CardWant(because=f"its highest clock cannot be read: {highest.because}")
    supported = supported_sm_clocks(card.nvml, card.handle).value or ()
    promised = card.ask("nvmlDeviceGetDefaultApplicationsClock", more=(GRAPHICS,)).value
    notes: list[str] = []
    if request.gpu_clock_mhz is None:
        clock = chosen_clock(
            highest_mhz=highest.value, promised_mhz=promised, supported_mhz=supported
        )
        share = 100 * clock / highest.value
        notes.append(f"{clock} MHz is {share:.0f} % of its highest clock; --gpu-clock chooses")
    else:
        clock = nearest(request.gpu_clock_mhz, supported)
        if clock != request.gpu_clock_mhz:
            notes.append(
                f"does not support {request.gpu_clock_mhz} MHz: using {clock} MHz, the nearest"
            )
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


def _put_graphics(card: NvidiaCard, value: str) -> None:
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


GRAPHICS_CLOCK_KNOB: Final[Knob] = NvidiaKnob(
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
    wants=_graphics_wants,
    value_of=_value_of,
    put=_put_graphics,
    same_value=same_clock,
)


_AMPERE: Final = 7


def _memory_wants(card: NvidiaCard, request: Wish) -> CardWant:  # noqa: ARG001
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


def _seen_memory(card: NvidiaCard) -> Answer[str]:
    return seen_clock(card, MEMORY)


def _put_memory(card: NvidiaCard, value: str) -> None:
    locked = re.fullmatch(r"(\d+) MHz", value)
    if locked is None:
        card.order("nvmlDeviceResetMemoryLockedClocks")
    else:
        card.order("nvmlDeviceSetMemoryLockedClocks", int(locked[1]), int(locked[1]))


MEMORY_CLOCK_KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-memory-clock",
    about="NVIDIA cards run their memory at its highest clock",
    why=(
        "Between kernels the memory clock may fall and takes time to rise. Under load it is at its "
        "highest anyway, so it is left alone unless asked for. Costs power while idle."
    ),
    effect="small",
    property="memory-clock",
    wants=_memory_wants,
    value_of=_seen_memory,
    put=_put_memory,
    same_value=same_clock,
    default=False,
)


_LEVEL: Final = "perf_determinism"
_KEEPS_LIMITS: Final = (_LEVEL, "manual")
"""Levels whose limits are the user's; at all others the driver sets them."""
_VALUE: Final = re.compile(r"(\w+) (\d+)-(\d+)")
_REFUSING: Final[dict[str, str]] = {
    "gfx95": "its driver has no determinism (MI350)",
    "gfx10": "RDNA cards have no determinism",
    "gfx11": "RDNA cards have no determinism",
    "gfx12": "RDNA cards have no determinism",
}
"""Start of the chip's name -> why not."""
_AMD_STEP_MHZ: Final = 10


class AmdDeterminism:
    """One setting per AMD card, at `gpu/ADDRESS/determinism`; satisfies `Knob`."""

    name = "amd-determinism"
    about = "AMD cards cap their graphics clock"
    why = (
        "A free clock follows temperature and power. Capped below its limits the card holds it, "
        "though it may still fall. Kernels get slower, all of them alike, unless memory or the "
        "processor is what they wait for: compare numbers with the same cap only."
    )
    profile: Profile = "gpu"
    effect: Effect = "large"
    reach: Reach = "machine"
    needs_root = True
    default = True

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """Every card; one that cannot becomes a note, all of them a reason."""
        settings: list[Setting] = []
        notes: list[str] = []
        for card in read_amd(machine.files):
            because = self._refusal(card, request)
            level, limits = card.performance_level.value, card.graphics_limits_mhz.value
            if because or level is None or limits is None:
                because = because or card.performance_level.because
                because = because or card.graphics_limits_mhz.because
                notes.append(f"{card.card}: left alone, because {because}")
                continue
            cap = _cap(card, request)
            notes.append(f"{card.card}: whether it takes determinism is known when it is written")
            settings.append(
                Setting(
                    knob=self.name,
                    place=f"gpu/{card.address}/determinism",
                    found=f"{level} {limits[0]}-{limits[1]}",
                    wanted=f"{_LEVEL} {limits[0]}-{cap}",
                )
            )
        if not settings:
            return KnobState(knob=self.name, unavailable="; ".join(notes) or "no AMD GPU here")
        return KnobState(knob=self.name, settings=tuple(settings), notes=tuple(notes))

    def read(self, machine: Machine, place: str) -> str:
        """Level and limits at this moment."""
        card = _card(machine, place)
        level = machine.files.read(f"{card}/device/power_dpm_force_performance_level")
        limits = graphics_limits(machine.files, card)
        if level.value is None or limits.value is None:
            raise MissingTool(f"cannot read {level.because or limits.because}")
        return f"{level.value.strip()} {limits.value[0]}-{limits.value[1]}"

    def write(self, machine: Machine, setting: Setting) -> None:
        """Set level and limit; a card that takes only half of it is put back."""
        if setting.wanted is None:
            return
        try:
            self._put(machine, setting.place, setting.wanted)
            now = self.read(machine, setting.place)
            if not self.same(setting.place, now, setting.wanted):
                raise MissingTool(f"the card took the level and has {now!r}")
        except TorchyardError:
            with suppress(TorchyardError):
                self.restore(machine, setting)
            raise

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Bring back level and limits."""
        with suppress(TorchyardError):
            if self.same(setting.place, self.read(machine, setting.place), setting.found):
                return
        self._put(machine, setting.place, setting.found)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Whether level and upper limit agree; the lower one only where the user may set it."""
        first, second = _VALUE.fullmatch(one), _VALUE.fullmatch(other)
        if first is None or second is None:
            return one == other
        if first[1] != second[1]:
            return False
        if first[1] == _LEVEL:
            return first[3] == second[3]
        return first[1] not in _KEEPS_LIMITS or first.groups() == second.groups()

    @staticmethod
    def _put(machine: Machine, place: str, value: str) -> None:
        parts = _VALUE.fullmatch(value)
        if parts is None:
            raise MissingTool(f"{value!r} is no level with limits")
        device = f"{_card(machine, place)}/device"
        level, lowest, highest = parts.groups()
        machine.files.write(f"{device}/power_dpm_force_performance_level", level)
        if level not in _KEEPS_LIMITS:
            return
        table = f"{device}/pp_od_clk_voltage"
        if level != _LEVEL:  # determinism has no lower limit
            machine.files.write(table, f"s 0 {lowest}")
        machine.files.write(table, f"s 1 {highest}")
        machine.files.write(table, "c")

    def _refusal(self, card: AmdGpu, request: Wish) -> str:
        chip = card.chip.value or ""
        for start, because in _REFUSING.items():
            if chip.startswith(start):
                return because
        others = [
            str(process.pid) for process in card.processes.value or () if process.owner == "other"
        ]
        if others and self.name not in (*request.only, *request.also):
            return f"others compute on it (process {', '.join(others)}); --only {self.name} insists"
        return ""


def _cap(card: AmdGpu, request: Wish) -> int:
    """The wish inside the card's range, or a share of its highest clock."""
    limits = card.graphics_limits_mhz.value or (0, 0)
    # At `auto` the limits are the chip's own; at other levels the list of states may be wider.
    highest = max(limits[1], card.max_graphics_clock_mhz.value or 0)
    if request.gpu_clock_mhz is not None:
        return min(max(request.gpu_clock_mhz, limits[0]), highest)
    return int(SHARE_OF_HIGHEST * highest) // _AMD_STEP_MHZ * _AMD_STEP_MHZ


def _card(machine: Machine, place: str) -> str:
    address = place.split("/")[1]
    card = card_at(machine.files, address)
    if card is None:
        raise MissingTool(f"there is no AMD GPU at {address}", hint="is its driver still loaded?")
    return card


AMD_DETERMINISM_KNOB: Final[Knob] = AmdDeterminism()
