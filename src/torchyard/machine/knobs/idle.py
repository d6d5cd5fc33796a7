"""CPU idle states: limit the wake-up latency at run time, or disable deep states one by one.

Latency: a process opens /dev/cpu_dma_latency, writes the longest acceptable wake-up latency as four
bytes, and keeps the file open. The kernel uses no idle state that takes longer, and drops the limit
with the file, also when the process is killed. The knob therefore holds a descriptor in the process
that writes; for quieting that outlives its command that is the restore process, which a restore
ends. States: `stateK/disable` of every CPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Final

from torchyard.machine.knob import Knob, Machine, Reach, RequestedValues
from torchyard.machine.model import Effect, KnobState, QuietRequest, Setting
from torchyard.machine.system.cpu_states import ProcessorKnob, allowed_latency_us, idle_states
from torchyard.machine.system.file_tree import CPU, HeldDevice, empty_copy, read_device

DEVICE: Final = "dev/cpu_dma_latency"
_SIZE_BYTES: Final = 4
_NO_LIMIT_US: Final = 2_000_000_000
"""PM_QOS_CPU_LATENCY_DEFAULT_VALUE of the kernel: no process holds a limit."""
NO_LIMIT: Final = "no limit"
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, kw_only=True)
class IdleLatencyKnob(Knob):
    """Wake-up latency limit; values are microseconds as text, or `no limit`."""

    name: str = "idle-latency"
    about: str = "wake-up latency limit of idle states (C-states)"
    why: str = (
        "Waking up from a deep idle state takes tens to hundreds of microseconds, which adds to "
        "gaps between kernels and to the first work of every thread. Costs power, and turbo clocks "
        "that sleeping cores would allow. Long loops are not affected."
    )
    effect: Effect = "medium"
    reach: Reach = "held"
    held: dict[str, HeldDevice] = field(default_factory=dict, compare=False, repr=False)
    """Devices that this process holds, by path."""

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Return the limit in force, which only root can read, and the one that would be held."""
        files = machine.files
        if not files.exists(DEVICE):
            return self.unavailable(f"/{DEVICE}: no such device")
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
        reading = read_device(files, DEVICE, size_bytes=_SIZE_BYTES).map(_text)
        present = reading.value or _UNKNOWN
        if reading.value is None:
            notes.append(f"cannot read the limit in force: {reading.because}")
        requested = str(allowed_us)
        if present.isdigit() and int(present) <= allowed_us:
            notes.append(f"another process holds {present} us already")
            requested = present
        return self.state(self.setting(DEVICE, present, requested), notes=notes)

    def read(self, machine: Machine, place: str) -> str:
        """Return the limit in force: the minimum of all limits that processes hold."""
        reading = read_device(machine.files, place, size_bytes=_SIZE_BYTES)
        return _text(reading.or_raise(hint="run as root"))

    def put(self, machine: Machine, place: str, value: str) -> None:
        """Hold the limit, in place of one that this process held before."""
        key = str(machine.files.path(place))
        new = HeldDevice(machine.files, place, _bytes(int(value)))
        earlier = self.held.pop(key, None)
        self.held[key] = new
        if earlier is not None:
            earlier.close()

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Release the limit. One that a holder process keeps ends with that process."""
        held = self.held.pop(str(machine.files.path(setting.place)), None)
        if held is not None:
            held.release(_bytes(_NO_LIMIT_US))
        if not machine.files.live and machine.files.exists(setting.place):
            empty_copy(machine.files, setting.place)


def _bytes(latency_us: int) -> bytes:
    return latency_us.to_bytes(_SIZE_BYTES, sys.byteorder, signed=True)


def _text(value: bytes) -> str:
    """Format the device's value; a copy of a machine has an empty file for the device."""
    latency_us = int.from_bytes(value, sys.byteorder, signed=True) if value else _NO_LIMIT_US
    return NO_LIMIT if latency_us == _NO_LIMIT_US else str(latency_us)


IDLE_LATENCY_KNOB: Final[Knob] = IdleLatencyKnob()


def _requested_values(machine: Machine, request: QuietRequest) -> RequestedValues:
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


IDLE_STATES_KNOB: Final[Knob] = ProcessorKnob(
    name="idle-states",
    about="deep idle states (C-states), disabled one by one",
    why=(
        "Waking up from a deep idle state takes tens to hundreds of microseconds, which adds to gaps "
        "between kernels. The knob `idle-latency` does the same through one device, and the kernel "
        "itself undoes it if everything is killed. This knob is for machines without the device, or "
        "whose idle driver ignores it. Costs power."
    ),
    effect="medium",
    requested=_requested_values,
    default=False,
)
