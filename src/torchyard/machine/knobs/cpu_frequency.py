"""CPU frequency: governor, energy preference, turbo, and a fixed clock.

- Governor, for every cpufreq policy. Its tunables vanish with it and come back with the kernel's
  defaults, so they are recorded and restored, as are the clock set for the governor `userspace`,
  the energy preferences (AMD's driver loses them while the governor is `performance`) and the
  turbo switch (which some drivers reset).
- Energy preference: EPP of a policy, EPB of a CPU.
- Turbo: `intel_pstate/no_turbo` (Intel's own driver), `cpufreq/boost` (other drivers, AMD, some
  Arm) and `policyN/boost` (since 6.11, per policy). `policyN/cpb` is an older name of
  `cpufreq/boost` and follows it. Bit 38 of MSR 0x1a0, for Intel without its driver, is read and
  reported, never written: kernels since 5.9 filter MSR writes from user space
  (`msr.allow_writes`), a locked-down kernel refuses them, and a write taints the kernel for good,
  which no restore takes back.
- Fixed clock: lowest and highest allowed clock of every policy are the same. One setting is a
  pair, `lowest-highest` in kHz, because neither can be written without regard to the other.
  Intel's limits in percent, for all policies, are a pair of their own.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from torchyard.errors import MissingTool
from torchyard.machine.knob import Knob, Machine, Reach, RequestedValues, same_text
from torchyard.machine.model import Effect, KnobState, Profile, Setting, Wish
from torchyard.machine.system.cpu_states import (
    CPU,
    CPUFREQ,
    NO_POLICY,
    ProcessorKnob,
    base_clock,
    leave_offline_alone,
    policies,
    reachable_khz,
)
from torchyard.machine.system.file_tree import FileTree, WriteRefused, read_device

WANTED: Final = "performance"
_NO_TURBO: Final = f"{CPU}/intel_pstate/no_turbo"
_FILES: Final = (
    "scaling_governor",
    "scaling_setspeed",
    "energy_performance_preference",
    "no_turbo",
)
"""Places that are files; every other place of this knob is a folder of tunables."""


class GovernorKnob(ProcessorKnob):
    """Governors are files; the tunables of one governor are one setting, a whole folder."""

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """Tunables first: a restore goes backwards, and needs the governor before them."""
        state = super().survey(machine, request)
        tunables = tuple(
            Setting(knob=self.name, place=folder, found=text, wanted=None)
            for folder in _tunable_folders(machine.files)
            if (text := _tunables(machine.files, folder))
        )
        if state.unavailable:
            return state
        return KnobState(knob=self.name, settings=tunables + state.settings, notes=state.notes)

    def read(self, machine: Machine, place: str) -> str:
        """A governor, or all tunables of a folder as `name=value` words."""
        if _is_file(place):
            return super().read(machine, place)
        text = _tunables(machine.files, place)
        if not text:
            raise MissingTool(f"/{place} is not there: no policy has that governor now")
        return text

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Bring back a governor, or those tunables that are others now."""
        if _is_file(setting.place):
            super().restore(machine, setting)
        else:
            _put_tunables(machine.files, setting.place, setting.found)


def _governor_wants(machine: Machine, request: Wish) -> RequestedValues:  # noqa: ARG001
    files = machine.files
    found = policies(files)
    if not found:
        return RequestedValues(unavailable=NO_POLICY)
    # A restore goes backwards: what is kept comes after the governor.
    kept: dict[str, str | None] = {_NO_TURBO: None} if files.exists(_NO_TURBO) else {}
    wanted: dict[str, str | None] = {}
    notes: list[str] = []
    for policy in found:
        if files.read(f"{policy}/scaling_governor").value == "userspace":
            kept[f"{policy}/scaling_setspeed"] = None
        if files.exists(f"{policy}/energy_performance_preference"):
            kept[f"{policy}/energy_performance_preference"] = None
        choices = (files.read(f"{policy}/scaling_available_governors").value or "").split()
        if WANTED in choices:
            wanted[f"{policy}/scaling_governor"] = WANTED
        else:
            notes.append(f"/{policy} has no governor {WANTED!r}, only {' '.join(choices) or '?'}")
    if not wanted:
        return RequestedValues(unavailable=notes[0])
    return RequestedValues(values={**kept, **wanted}, notes=tuple(notes))


def _is_file(place: str) -> bool:
    return place.endswith(_FILES)


def _tunable_folders(files: FileTree) -> list[str]:
    """Most drivers share one folder between all policies; some have one in each policy."""
    folders: dict[str, None] = {}
    for policy in policies(files):
        governor = files.read(f"{policy}/scaling_governor").value or ""
        for folder in (f"{policy}/{governor}", f"{CPUFREQ}/{governor}"):
            if governor and files.names(folder):
                folders[folder] = None
    return list(folders)


def _tunables(files: FileTree, folder: str) -> str:
    """`rate_limit_us=1000 up_threshold=95`, quoted as in a shell; empty when there are none."""
    found = ((name, files.read(f"{folder}/{name}").value) for name in files.names(folder))
    return shlex.join(f"{name}={value.strip()}" for name, value in found if value is not None)


def _put_tunables(files: FileTree, folder: str, text: str) -> None:
    """Write what differs, again and again while one more is taken.

    The thresholds of `conservative` are each refused while they cross the other one, so the right
    order depends on the values. Read-only tunables do not differ and are not written.
    """
    wanted = dict(word.split("=", 1) for word in shlex.split(text))
    refused: dict[str, WriteRefused] = {}
    progress = True
    while progress:
        progress = False
        refused.clear()
        for name, value in wanted.items():
            path = f"{folder}/{name}"
            if (files.read(path).value or "").strip() == value:
                continue
            try:
                files.write(path, value)
                progress = True
            except WriteRefused as error:
                refused[name] = error
        if not refused:
            return
    raise next(iter(refused.values()))


GOVERNOR_KNOB: Final[Knob] = GovernorKnob(
    name="governor",
    about="what decides about the clock of each processor",
    why=(
        "Most governors follow the load: the clock rises some milliseconds after work begins, so "
        "short measurements run at clocks of their own. `performance` always asks for the highest "
        "allowed clock. Costs power and heat while the machine idles."
    ),
    effect="large",
    wants=_governor_wants,
)


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


def _preference_wants(machine: Machine, request: Wish) -> RequestedValues:  # noqa: ARG001
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
        return RequestedValues(
            unavailable=f"no policy has {_PREFERENCE} and no processor has {_BIAS}"
        )
    return RequestedValues(values=values)


def _same_preference(place: str, one: str, other: str) -> bool:
    if place.endswith(_BIAS):
        return _BIAS_OF_WORD.get(one, one) == _BIAS_OF_WORD.get(other, other)
    return same_text(place, one, other)


PREFERENCE_KNOB: Final[Knob] = ProcessorKnob(
    name="preference",
    about="what the hardware prefers: speed or power",
    why=(
        "Where the hardware chooses the clock itself, this decides how fast and how far it rises. "
        "A balanced preference lowers clocks between kernels. Costs power."
    ),
    effect="medium",
    wants=_preference_wants,
    same_value=_same_preference,
)


NO_TURBO: Final = f"{CPU}/intel_pstate/no_turbo"
BOOST: Final = f"{CPUFREQ}/boost"
_LOWEST_SHARE: Final = f"{CPU}/intel_pstate/min_perf_pct"
_MSR: Final = "dev/cpu/0/msr"
_MISC_ENABLE: Final = 0x1A0
_TURBO_OFF_BIT: Final = 38


def _turbo_wants(machine: Machine, request: Wish) -> RequestedValues:  # noqa: ARG001
    files = machine.files
    # What is lost with a switch stands before it, because a restore goes backwards.
    if files.exists(NO_TURBO):
        # store_no_turbo() squashes the lowest share into what is left and does not give it back.
        return RequestedValues(values={**_kept(files, [_LOWEST_SHARE]), NO_TURBO: "1"})
    found = policies(files)
    # Drivers of boost ask for their highest clock anew, whatever limit was there.
    limits = _kept(files, [f"{policy}/scaling_max_freq" for policy in found])
    own = _kept(files, [f"{policy}/boost" for policy in found])
    if files.exists(BOOST):
        # The switch for all sets every policy's, both ways: one may have been found without boost.
        return RequestedValues(values={**limits, **own, BOOST: "0"})
    if own:
        return RequestedValues(values={**limits, **dict.fromkeys(own, "0")})
    return RequestedValues(unavailable=_why_not(files))


def _kept(files: FileTree, places: list[str]) -> dict[str, str | None]:
    return {place: None for place in places if files.exists(place)}


def _why_not(files: FileTree) -> str:
    if "GenuineIntel" in (files.read("proc/cpuinfo").value or ""):
        bits = read_device(files, _MSR, size_bytes=8, offset=_MISC_ENABLE)
        if bits.value is not None:
            off = int.from_bytes(bits.value, "little") >> _TURBO_OFF_BIT & 1
            return (
                f"turbo is {'off' if off else 'on'} (MSR 0x1a0) and this driver has no switch; "
                "kernels filter writes to MSRs, so set it in the firmware"
            )
    if policies(files):
        return (
            f"the driver has no switch: neither /{NO_TURBO} nor /{BOOST}; "
            "the knob `frequency` keeps clocks at the base clock all the same"
        )
    return f"there is no switch: neither /{NO_TURBO} nor /{BOOST}"


TURBO_KNOB: Final[Knob] = ProcessorKnob(
    name="turbo",
    about="clocks above the base clock (turbo, boost)",
    why=(
        "Turbo clocks depend on temperature, on how many cores work and on the instructions they "
        "run, so the same code runs at other clocks a minute later. Off, work on one core is "
        "slower by the ratio of both clocks."
    ),
    effect="large",
    wants=_turbo_wants,
)


PERCENT: Final = f"{CPU}/intel_pstate"

Pair = tuple[int, int]
"""Lowest and highest."""


@dataclass(frozen=True, kw_only=True)
class FrequencyKnob:
    """Pairs of limits."""

    name: str = "frequency"
    about: str = "a fixed clock: lowest and highest limit are the same"
    why: str = (
        "Between its limits the hardware moves the clock by load, heat and power. Fixed at the base "
        "clock, which any load can keep up, two runs get the same clock. Costs the speed of turbo: "
        "numbers are of a slower machine."
    )
    profile: Profile = "cpu"
    effect: Effect = "large"
    reach: Reach = "machine"
    needs_root: bool = True
    default: bool = True

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """Limits of every policy, and the clock they would be fixed at."""
        files = machine.files
        found = policies(files)
        if not found:
            return KnobState(knob=self.name, unavailable=NO_POLICY)
        settings: list[Setting] = self._percent(files)
        notes: dict[str, None] = {}
        for policy in found:
            pair = _read_pair(files, policy)
            khz = _fixed_khz(files, policy, request, notes)
            if pair is None or khz is None:
                notes[f"left alone, because /{policy} does not show its limits"] = None
                continue
            settings.append(
                Setting(knob=self.name, place=policy, found=_text(pair), wanted=_text((khz, khz)))
            )
        if not any(setting.place != PERCENT for setting in settings):
            return KnobState(knob=self.name, unavailable=next(iter(notes)))
        return KnobState(knob=self.name, settings=tuple(settings), notes=tuple(notes))

    def read(self, machine: Machine, place: str) -> str:
        """`lowest-highest`."""
        pair = _read_pair(machine.files, place)
        if pair is None:
            raise MissingTool(f"/{place} does not show its limits")
        return _text(pair)

    def write(self, machine: Machine, setting: Setting) -> None:
        """Fix the clock."""
        leave_offline_alone(machine.files, setting.place)
        if setting.wanted is not None:
            _put_pair(machine.files, setting.place, _pair(setting.wanted))

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Bring back both limits."""
        _put_pair(machine.files, setting.place, _pair(setting.found))

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """To the kHz: wanted clocks are ones that the hardware has, found ones were shown by it."""
        return one == other

    def _percent(self, files: FileTree) -> list[Setting]:
        """Intel's limits for all policies; the highest may be below the base clock."""
        pair = _read_pair(files, PERCENT)
        if pair is None:
            return []
        wanted = None if pair[1] == 100 else _text((pair[0], 100))  # noqa: PLR2004
        return [Setting(knob=self.name, place=PERCENT, found=_text(pair), wanted=wanted)]


def _fixed_khz(files: FileTree, policy: str, request: Wish, notes: dict[str, None]) -> int | None:
    base = base_clock(files, policy)
    if base is None:
        return None
    if request.frequency_khz is None:
        if base.guessed:
            notes[
                "no base clock is published here: the highest clock is used, which heat may take "
                "away again; choose a lower one yourself"
            ] = None
        return reachable_khz(files, policy, base.khz)
    khz = reachable_khz(files, policy, request.frequency_khz)
    if khz != request.frequency_khz:
        notes[f"{request.frequency_khz} kHz is not supported by this CPU: using {khz} kHz"] = None
    if khz > base.khz and not base.guessed:
        notes[
            f"{khz} kHz is above the base clock of {base.khz} kHz: it needs turbo, so leave the "
            "knob `turbo` out"
        ] = None
    return khz


def _names(place: str) -> tuple[str, str]:
    if place == PERCENT:
        return f"{place}/min_perf_pct", f"{place}/max_perf_pct"
    return f"{place}/scaling_min_freq", f"{place}/scaling_max_freq"


def _read_pair(files: FileTree, place: str) -> Pair | None:
    lowest, highest = (files.read(path).number for path in _names(place))
    return None if lowest is None or highest is None else (lowest, highest)


def _put_pair(files: FileTree, place: str, wanted: Pair) -> None:
    """Write both limits so that they never cross, and only those that differ.

    Kernels before 5.4 refuse a lowest clock above the highest and the reverse; later ones take it
    and clamp. So when the new highest is not below the present lowest, the highest goes first
    (max before raising min); otherwise the lowest has to get out of its way first. One of both
    orders always works, because wanted limits do not cross each other.

    What differs only, because since 5.4 the kernel keeps what was asked for apart from what is in
    force and shows the latter. With turbo off the highest limit shows the base clock while 3.9 GHz
    were asked for: writing the base clock would change nothing now, and keep the processor there
    when turbo comes back.
    """
    present = _read_pair(files, place)
    if present is None:
        raise MissingTool(f"/{place} does not show its limits")
    lowest, highest = _names(place)
    steps = [(lowest, wanted[0], present[0]), (highest, wanted[1], present[1])]
    if wanted[1] >= present[0]:
        steps.reverse()
    for path, number, before in steps:
        if number != before:
            files.write(path, str(number))


def _text(pair: Pair) -> str:
    return f"{pair[0]}-{pair[1]}"


def _pair(text: str) -> Pair:
    lowest, _, highest = text.partition("-")
    return int(lowest), int(highest)


FREQUENCY_KNOB: Final[Knob] = FrequencyKnob()
