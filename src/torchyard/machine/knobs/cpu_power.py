"""CPU frequency and idle states: governor, energy preference, turbo, fixed clock, wake-up latency.

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
- Idle latency: a process opens /dev/cpu_dma_latency, writes the longest acceptable wake-up latency
  as four bytes, and keeps the file open. The kernel uses no idle state that takes longer, and drops
  the limit with the file, also when the process is killed. The knob therefore holds a descriptor in
  the process that writes; for quieting that outlives its command that is the restore process, which
  a restore ends. Deep idle states can also be disabled one by one (`stateK/disable` of every CPU).
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from typing import Final

from torchyard.errors import MissingTool
from torchyard.machine.facts.processor import BOOST, NO_TURBO
from torchyard.machine.knob import Knob, Machine, Reach, RequestedValues, same_text
from torchyard.machine.model import KnobState, QuietRequest, Setting
from torchyard.machine.system.cores import (
    CPUFREQ,
    NO_POLICY,
    ProcessorKnob,
    allowed_latency_us,
    base_clock,
    idle_states,
    policies,
    reachable_khz,
    skip_offline,
)
from torchyard.machine.system.file_tree import (
    CPU,
    FileTree,
    HeldDevice,
    WriteRefused,
    empty_copy,
    read_device,
)

PERFORMANCE: Final = "performance"
_FILES: Final = (
    "scaling_governor",
    "scaling_setspeed",
    "energy_performance_preference",
    "no_turbo",
)
"""Locations that are files; all others of this knob are folders of tunables."""


class GovernorKnob(ProcessorKnob):
    """Governor files; all tunables of one governor, a folder, are one setting."""

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Survey tunables first: a restore runs in reverse and needs the governor before them."""
        state = super().survey(machine, request)
        if state.unavailable:
            return state
        tunables = (
            self.setting(folder, text, None)
            for folder in _tunable_folders(machine.files)
            if (text := _tunables(machine.files, folder))
        )
        return self.state(*tunables, *state.settings, notes=state.notes)

    def read(self, machine: Machine, place: str) -> str:
        """Return a governor, or all tunables of a folder as `name=value` words."""
        if _is_file(place):
            return super().read(machine, place)
        text = _tunables(machine.files, place)
        if not text:
            raise MissingTool(f"/{place} does not exist: no policy has that governor now")
        return text

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Restore a governor, or the tunables that differ."""
        if _is_file(setting.place):
            super().restore(machine, setting)
        else:
            _put_tunables(machine.files, setting.place, setting.found)


def _governor_values(machine: Machine, request: QuietRequest) -> RequestedValues:  # noqa: ARG001
    files = machine.files
    all_policies = policies(files)
    if not all_policies:
        return RequestedValues(unavailable=NO_POLICY)
    # A restore runs in reverse: these values are restored after the governor.
    restored_only: dict[str, str | None] = _restored_only(files, [NO_TURBO])
    requested: dict[str, str | None] = {}
    notes: list[str] = []
    for policy in all_policies:
        if files.read(f"{policy}/scaling_governor").value == "userspace":
            restored_only[f"{policy}/scaling_setspeed"] = None
        if files.exists(f"{policy}/energy_performance_preference"):
            restored_only[f"{policy}/energy_performance_preference"] = None
        choices = files.read(f"{policy}/scaling_available_governors").text.split()
        if PERFORMANCE in choices:
            requested[f"{policy}/scaling_governor"] = PERFORMANCE
        else:
            notes.append(
                f"/{policy} has no governor {PERFORMANCE!r}, only {' '.join(choices) or '?'}"
            )
    if not requested:
        return RequestedValues(unavailable=notes[0])
    return RequestedValues(values={**restored_only, **requested}, notes=tuple(notes))


def _is_file(place: str) -> bool:
    return place.endswith(_FILES)


def _tunable_folders(files: FileTree) -> list[str]:
    """Return the folders of tunables: one for all policies with most drivers, else one for each."""
    folders: dict[str, None] = {}
    for policy in policies(files):
        governor = files.read(f"{policy}/scaling_governor").text
        for folder in (f"{policy}/{governor}", f"{CPUFREQ}/{governor}"):
            if governor and files.names(folder):
                folders[folder] = None
    return list(folders)


def _tunables(files: FileTree, folder: str) -> str:
    """Format tunables as `rate_limit_us=1000 up_threshold=95`, shell-quoted; empty if none."""
    values = ((name, files.read(f"{folder}/{name}").value) for name in files.names(folder))
    return shlex.join(f"{name}={value.strip()}" for name, value in values if value is not None)


def _put_tunables(files: FileTree, folder: str, text: str) -> None:
    """Write the tunables that differ, repeatedly as long as one more is accepted.

    Each threshold of `conservative` is refused while it crosses the other one, so the right order
    depends on the values. Read-only tunables do not differ and are not written.
    """
    original = dict(word.split("=", 1) for word in shlex.split(text))
    refused: dict[str, WriteRefused] = {}
    progress = True
    while progress:
        progress = False
        refused.clear()
        for name, value in original.items():
            path = f"{folder}/{name}"
            if files.read(path).text.strip() == value:
                continue
            try:
                files.write(path, value)
                progress = True
            except WriteRefused as error:
                refused[name] = error
        if not refused:
            return
    raise next(iter(refused.values()))


GOVERNOR_KNOB: Final[Knob] = GovernorKnob(name="governor", requested=_governor_values)


_BIAS: Final = "energy_perf_bias"
_PREFERENCE: Final = "energy_performance_preference"
_BIAS_OF_WORD: Final = {
    "performance": "0",
    "balance-performance": "4",
    "normal": "6",
    "balance-power": "8",
    "power": "15",
}
"""arch/x86/kernel/cpu/intel_epb.c accepts words and numbers, and always shows the number."""


def _preference_values(machine: Machine, request: QuietRequest) -> RequestedValues:  # noqa: ARG001
    files = machine.files
    values: dict[str, str | None] = {
        path: "performance"
        for policy in policies(files)
        if files.exists(path := f"{policy}/{_PREFERENCE}")
    }
    # Both if there are both: which one a CPU follows depends on its model. On models where the
    # preference is only another name of the bias, the exact bias has to be restored first, and the
    # preference then needs no write; a restore runs in reverse, so the bias comes last.
    values |= dict.fromkeys(files.paths(f"{CPU}/cpu[0-9]*/power/{_BIAS}"), "0")
    if not values:
        return RequestedValues(unavailable=f"no policy has {_PREFERENCE} and no CPU has {_BIAS}")
    return RequestedValues(values=values)


def _same_preference(place: str, one: str, other: str) -> bool:
    if place.endswith(_BIAS):
        return _BIAS_OF_WORD.get(one, one) == _BIAS_OF_WORD.get(other, other)
    return same_text(place, one, other)


PREFERENCE_KNOB: Final[Knob] = ProcessorKnob(
    name="preference", requested=_preference_values, same_value=_same_preference
)


_LOWEST_SHARE: Final = f"{CPU}/intel_pstate/min_perf_pct"
_MSR: Final = "dev/cpu/0/msr"
_MISC_ENABLE: Final = 0x1A0
_TURBO_OFF_BIT: Final = 38


def _turbo_values(machine: Machine, request: QuietRequest) -> RequestedValues:  # noqa: ARG001
    files = machine.files
    # Values that are lost with a switch come before it, because a restore runs in reverse.
    if files.exists(NO_TURBO):
        # store_no_turbo() clamps the minimum share and does not restore it.
        return RequestedValues(values={**_restored_only(files, [_LOWEST_SHARE]), NO_TURBO: "1"})
    all_policies = policies(files)
    # Boost drivers reset the maximum clock, whatever the limit was.
    limits = _restored_only(files, [f"{policy}/scaling_max_freq" for policy in all_policies])
    boost_files = _restored_only(files, [f"{policy}/boost" for policy in all_policies])
    if files.exists(BOOST):
        # The global switch also sets that of every policy; one may have been off before.
        return RequestedValues(values={**limits, **boost_files, BOOST: "0"})
    if boost_files:
        return RequestedValues(values={**limits, **dict.fromkeys(boost_files, "0")})
    return RequestedValues(unavailable=_why_not(files))


def _restored_only(files: FileTree, places: list[str]) -> dict[str, str | None]:
    return {place: None for place in places if files.exists(place)}


def _why_not(files: FileTree) -> str:
    if "GenuineIntel" in files.read("proc/cpuinfo").text:
        bits = read_device(files, _MSR, size_bytes=8, offset=_MISC_ENABLE)
        if bits.value is not None:
            off = int.from_bytes(bits.value, "little") >> _TURBO_OFF_BIT & 1
            return (
                f"turbo is {'off' if off else 'on'} (MSR 0x1a0) and this driver has no switch; "
                "kernels filter MSR writes, so set it in the firmware"
            )
    if policies(files):
        return (
            f"the driver has no switch: neither /{NO_TURBO} nor /{BOOST}; "
            "the knob `frequency` still limits clocks to the base clock"
        )
    return f"there is no switch: neither /{NO_TURBO} nor /{BOOST}"


TURBO_KNOB: Final[Knob] = ProcessorKnob(name="turbo", requested=_turbo_values)


PERCENT: Final = f"{CPU}/intel_pstate"

Pair = tuple[int, int]
"""Lowest and highest."""


@dataclass(frozen=True, kw_only=True)
class FrequencyKnob(Knob):
    """Lowest and highest clock of every policy, as pairs."""

    name: str = "frequency"

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Return the limits of every policy, and the clock they would be fixed at."""
        files = machine.files
        all_policies = policies(files)
        if not all_policies:
            return self.unavailable(NO_POLICY)
        settings: list[Setting] = self._percent(files)
        notes: dict[str, None] = {}
        for policy in all_policies:
            pair = _read_pair(files, policy)
            khz = _fixed_khz(files, policy, request, notes)
            if pair is None or khz is None:
                notes[f"skipped, because /{policy} does not report its limits"] = None
                continue
            settings.append(self.setting(policy, _pair_text(pair), _pair_text((khz, khz))))
        if not any(setting.place != PERCENT for setting in settings):
            return self.unavailable(next(iter(notes)))
        return self.state(*settings, notes=notes)

    def read(self, machine: Machine, place: str) -> str:
        """Return `lowest-highest`."""
        return _pair_text(_present_pair(machine.files, place))

    def write(self, machine: Machine, setting: Setting) -> None:
        """Fix the clock."""
        skip_offline(machine.files, setting.place)
        super().write(machine, setting)

    def put(self, machine: Machine, place: str, value: str) -> None:
        """Set both limits."""
        lowest, _, highest = value.partition("-")
        _put_pair(machine.files, place, (int(lowest), int(highest)))

    def _percent(self, files: FileTree) -> list[Setting]:
        """Return Intel's limits for all policies; the maximum may be below the base clock."""
        pair = _read_pair(files, PERCENT)
        if pair is None:
            return []
        requested = None if pair[1] == 100 else _pair_text((pair[0], 100))  # noqa: PLR2004
        return [self.setting(PERCENT, _pair_text(pair), requested)]


def _fixed_khz(
    files: FileTree, policy: str, request: QuietRequest, notes: dict[str, None]
) -> int | None:
    base = base_clock(files, policy)
    if base is None:
        return None
    if request.frequency_khz is None:
        if base.guessed:
            notes[
                "the base clock is unknown: using the maximum clock, which heat may reduce; choose "
                "a lower one with --frequency"
            ] = None
        return reachable_khz(files, policy, base.khz)
    khz = reachable_khz(files, policy, request.frequency_khz)
    if khz != request.frequency_khz:
        notes[f"{request.frequency_khz} kHz is not supported by this CPU: using {khz} kHz"] = None
    if khz > base.khz and not base.guessed:
        notes[
            f"{khz} kHz is above the base clock of {base.khz} kHz and needs turbo: add "
            "`--without turbo`"
        ] = None
    return khz


def _pair_files(place: str) -> tuple[str, str]:
    if place == PERCENT:
        return f"{place}/min_perf_pct", f"{place}/max_perf_pct"
    return f"{place}/scaling_min_freq", f"{place}/scaling_max_freq"


def _read_pair(files: FileTree, place: str) -> Pair | None:
    lowest, highest = (files.read(path).number for path in _pair_files(place))
    return None if lowest is None or highest is None else (lowest, highest)


def _present_pair(files: FileTree, place: str) -> Pair:
    pair = _read_pair(files, place)
    if pair is None:
        raise MissingTool(f"/{place} does not report its limits")
    return pair


def _put_pair(files: FileTree, place: str, limits: Pair) -> None:
    """Write both limits so that they never cross, and only those that differ.

    Kernels before 5.4 refuse a minimum above the maximum and the reverse; later ones accept it and
    clamp. So if the new maximum is not below the present minimum, the maximum is written first;
    otherwise the minimum is. One of both orders always works, because the new limits do not cross.

    Only those that differ, because since 5.4 the kernel stores the requested limit and shows the
    one in force. With turbo off, the maximum shows the base clock while 3.9 GHz were requested:
    writing the base clock would change nothing now, and keep the CPU there when turbo is restored.
    """
    present = _present_pair(files, place)
    lowest, highest = _pair_files(place)
    steps = [(lowest, limits[0], present[0]), (highest, limits[1], present[1])]
    if limits[1] >= present[0]:
        steps.reverse()
    for path, number, before in steps:
        if number != before:
            files.write(path, str(number))


def _pair_text(pair: Pair) -> str:
    return f"{pair[0]}-{pair[1]}"


FREQUENCY_KNOB: Final[Knob] = FrequencyKnob()


LATENCY_DEVICE: Final = "dev/cpu_dma_latency"
_SIZE_BYTES: Final = 4
_NO_LIMIT_US: Final = 2_000_000_000
"""PM_QOS_CPU_LATENCY_DEFAULT_VALUE of the kernel: no process holds a limit."""
NO_LIMIT: Final = "no limit"
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, kw_only=True)
class IdleLatencyKnob(Knob):
    """Wake-up latency limit; values are microseconds as text, or `no limit`."""

    name: str = "idle-latency"
    reach: Reach = "held"
    held: dict[str, HeldDevice] = field(default_factory=dict, compare=False, repr=False)
    """Devices that this process holds, by path."""

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Return the limit in force, which only root can read, and the one that would be held."""
        files = machine.files
        if not files.exists(LATENCY_DEVICE):
            return self.unavailable(f"/{LATENCY_DEVICE}: no such device")
        states = idle_states(files)
        allowed_us = allowed_latency_us(states, request)
        notes: list[str] = []
        if not states:
            notes.append(
                "this kernel has no idle driver: in a virtual machine the host controls idling, and "
                "this has no effect"
            )
        elif allowed_us > request.latency_us:
            notes.append(
                f"the lightest idle state takes {allowed_us} us: with less, CPUs would spin; use 0 "
                "for that"
            )
        reading = read_device(files, LATENCY_DEVICE, size_bytes=_SIZE_BYTES).map(_latency_text)
        present = reading.value or _UNKNOWN
        if reading.value is None:
            notes.append(f"cannot read the limit in force: {reading.because}")
        requested = str(allowed_us)
        if present.isdigit() and int(present) <= allowed_us:
            notes.append(f"another process holds {present} us already")
            requested = present
        return self.state(self.setting(LATENCY_DEVICE, present, requested), notes=notes)

    def read(self, machine: Machine, place: str) -> str:
        """Return the limit in force: the minimum of all limits that processes hold."""
        reading = read_device(machine.files, place, size_bytes=_SIZE_BYTES)
        return _latency_text(reading.or_raise(hint="run as root"))

    def put(self, machine: Machine, place: str, value: str) -> None:
        """Hold the limit, in place of one that this process held before."""
        key = str(machine.files.path(place))
        new = HeldDevice(machine.files, place, _latency_bytes(int(value)))
        earlier = self.held.pop(key, None)
        self.held[key] = new
        if earlier is not None:
            earlier.close()

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Release the limit. One that a holder process keeps ends with that process."""
        device = self.held.pop(str(machine.files.path(setting.place)), None)
        if device is not None:
            device.release(_latency_bytes(_NO_LIMIT_US))
        if not machine.files.live and machine.files.exists(setting.place):
            empty_copy(machine.files, setting.place)


def _latency_bytes(latency_us: int) -> bytes:
    return latency_us.to_bytes(_SIZE_BYTES, sys.byteorder, signed=True)


def _latency_text(value: bytes) -> str:
    """Format the device's value; a copy of a machine has an empty file for the device."""
    latency_us = int.from_bytes(value, sys.byteorder, signed=True) if value else _NO_LIMIT_US
    return NO_LIMIT if latency_us == _NO_LIMIT_US else str(latency_us)


IDLE_LATENCY_KNOB: Final[Knob] = IdleLatencyKnob()


def _idle_state_values(machine: Machine, request: QuietRequest) -> RequestedValues:
    states = idle_states(machine.files)
    if not states:
        return RequestedValues(unavailable=f"no idle states below /{CPU}: no idle driver")
    allowed_us = allowed_latency_us(states, request)
    deep = [state for state in states if state.latency_us > allowed_us]
    if not deep:
        return RequestedValues(
            unavailable=f"no idle state has a wake-up latency above {allowed_us} us"
        )
    names = ", ".join(dict.fromkeys(state.name for state in deep))
    return RequestedValues(
        values={f"{state.folder}/disable": "1" for state in deep},
        notes=(f"wake-up latency above {allowed_us} us: {names}",),
    )


IDLE_STATES_KNOB: Final[Knob] = ProcessorKnob(name="idle-states", requested=_idle_state_values)
