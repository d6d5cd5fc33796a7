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

from torchyard.errors import MissingTool
from torchyard.machine.knob import Knob, Machine, Reach, RequestedValues
from torchyard.machine.model import Effect, KnobState, Profile, Setting, Wish
from torchyard.machine.system.cpu_states import CPU, ProcessorKnob, allowed_latency_us, idle_states
from torchyard.machine.system.file_tree import (
    FileTree,
    FoundBytes,
    HeldDevice,
    empty_copy,
    read_device,
)

DEVICE: Final = "dev/cpu_dma_latency"
_SIZE_BYTES: Final = 4
_NO_LIMIT_US: Final = 2_000_000_000
"""PM_QOS_CPU_LATENCY_DEFAULT_VALUE of the kernel: nobody holds a limit."""
NO_LIMIT: Final = "no limit"
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, kw_only=True)
class IdleLatencyKnob:
    """Microseconds as text, or `no limit`."""

    name: str = "idle-latency"
    about: str = "deep sleep of idle processors, limited by how long waking up takes"
    why: str = (
        "Waking up from a deep state takes tens to hundreds of microseconds, which lands in gaps "
        "between kernels and in the first work of every thread. Costs power, and turbo clocks that "
        "sleeping neighbours would allow. Long loops do not notice."
    )
    profile: Profile = "cpu"
    effect: Effect = "medium"
    reach: Reach = "held"
    needs_root: bool = True
    default: bool = True
    held: dict[str, HeldDevice] = field(default_factory=dict, compare=False, repr=False)
    """What this process holds, by the file's path."""

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """The limit in force, and the one that would be held. Only root can read the former."""
        files = machine.files
        if not files.exists(DEVICE):
            return KnobState(knob=self.name, unavailable=f"/{DEVICE}: there is no such device")
        states = idle_states(files)
        allowed_us = allowed_latency_us(states, request)
        notes: list[str] = []
        if not states:
            notes.append(
                "this kernel has no idle driver: in a virtual machine the host decides about sleep, "
                "and this changes nothing"
            )
        elif allowed_us > request.latency_us:
            notes.append(
                f"the lightest sleep here takes {allowed_us} us: with less, processors would spin; "
                "ask for 0 to have that"
            )
        bytes_found = read_device(files, DEVICE, size_bytes=_SIZE_BYTES)
        found = _UNKNOWN if bytes_found.value is None else _text(bytes_found.value)
        if bytes_found.value is None:
            notes.append(f"the limit in force cannot be read: {bytes_found.because}")
        wanted = str(allowed_us)
        if found.isdigit() and int(found) <= allowed_us:
            notes.append(f"another process holds {found} us already; nothing is added to that")
            wanted = found
        setting = Setting(knob=self.name, place=DEVICE, found=found, wanted=wanted)
        return KnobState(knob=self.name, settings=(setting,), notes=tuple(notes))

    def read(self, machine: Machine, place: str) -> str:
        """The limit in force: the least of all that processes hold."""
        found: FoundBytes = read_device(machine.files, place, size_bytes=_SIZE_BYTES)
        if found.value is None:
            raise MissingTool(f"cannot read {found.because}", hint="run as root")
        return _text(found.value)

    def write(self, machine: Machine, setting: Setting) -> None:
        """Hold the limit from now on, in place of one that this process held before."""
        if setting.wanted is None:
            return
        key = str(machine.files.path(setting.place))
        new = HeldDevice(machine.files, setting.place, _bytes(int(setting.wanted)))
        earlier = self.held.pop(key, None)
        self.held[key] = new
        if earlier is not None:
            earlier.close()

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Let go. What another process held is gone with it or ended by who restores."""
        held = self.held.pop(str(machine.files.path(setting.place)), None)
        if held is not None:
            held.release(_bytes(_NO_LIMIT_US))
        if not machine.files.live:
            _forget(machine.files, setting.place)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Equal limits."""
        return one == other


def _forget(files: FileTree, place: str) -> None:
    if files.exists(place):
        empty_copy(files, place)


def _bytes(latency_us: int) -> bytes:
    return latency_us.to_bytes(_SIZE_BYTES, sys.byteorder, signed=True)


def _text(value: bytes) -> str:
    """A copy of a machine has an empty file for the device."""
    latency_us = int.from_bytes(value, sys.byteorder, signed=True) if value else _NO_LIMIT_US
    return NO_LIMIT if latency_us == _NO_LIMIT_US else str(latency_us)


IDLE_LATENCY_KNOB: Final[Knob] = IdleLatencyKnob()


def _wants(machine: Machine, request: Wish) -> RequestedValues:
    states = idle_states(machine.files)
    if not states:
        return RequestedValues(
            unavailable=f"no processor has idle states below /{CPU}: no idle driver"
        )
    allowed_us = allowed_latency_us(states, request)
    deep = [state for state in states if state.latency_us > allowed_us]
    if not deep:
        return RequestedValues(unavailable=f"no idle state takes longer than {allowed_us} us")
    names = ", ".join(dict.fromkeys(state.name for state in deep))
    return RequestedValues(
        values={f"{state.folder}/disable": "1" for state in deep},
        notes=(f"longer than {allowed_us} us: {names}",),
    )


IDLE_STATES_KNOB: Final[Knob] = ProcessorKnob(
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
