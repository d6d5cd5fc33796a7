"""What processors do while they wait: idle states, how long waking takes, and limits on that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Fact
from torchyard.machine.facts.reading import Reader, agreed, facts_of, line_of, of_file
from torchyard.machine.file_tree import FileTree, Found
from torchyard.machine.knob import Machine

__all__ = ["DEVICE", "SECTION", "IdleState", "idle_states", "read"]

SECTION: Final = "idle"
_CPU: Final = "sys/devices/system/cpu"
DEVICE: Final = "dev/cpu_dma_latency"
"""Whoever holds it open limits how long waking may take."""
_NO_STATES: Final = f"/{_CPU}/cpu*/cpuidle: no idle driver, or the hypervisor idles for us"


@dataclass(frozen=True, kw_only=True)
class IdleState:
    """One idle state, on all processors together."""

    name: str
    latency_us: int
    """How long waking from it takes."""
    disabled: bool
    """On every processor that has it."""


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def idle_states(files: FileTree) -> tuple[IdleState, ...]:
    """Every state by name, lightest first."""
    found: dict[str, tuple[int, bool]] = {}
    for path in files.paths(f"{_CPU}/cpu*/cpuidle/state*/name"):
        folder = path.rsplit("/", 1)[0]
        name = line_of(files, path).value or folder.rsplit("/", 1)[1]
        latency_us = line_of(files, f"{folder}/latency").number or 0
        disabled = line_of(files, f"{folder}/disable").number == 1
        before = found.get(name, (latency_us, True))
        found[name] = (max(latency_us, before[0]), disabled and before[1])
    states = (
        IdleState(name=name, latency_us=latency_us, disabled=disabled)
        for name, (latency_us, disabled) in found.items()
    )
    return tuple(sorted(states, key=lambda state: state.latency_us))


def _states(files: FileTree) -> Found:
    states = idle_states(files)
    if not states:
        return Found(because=_NO_STATES)
    return Found(
        value=", ".join(
            f"{state.name} {state.latency_us} us" + (" (disabled)" if state.disabled else "")
            for state in states
        )
    )


def _deepest(files: FileTree) -> Found:
    allowed = [state for state in idle_states(files) if not state.disabled]
    if not allowed:
        return Found(because=_NO_STATES)
    return Found(value=f"{allowed[-1].name}, {allowed[-1].latency_us} us to wake")


def _limits(files: FileTree) -> Found:
    values = {
        path.split("/")[-3].removeprefix("cpu"): {"0": "none", "n/a": "no idling at all"}.get(
            text, f"{text} us"
        )
        for path in files.paths(f"{_CPU}/cpu*/power/pm_qos_resume_latency_us")
        if (text := line_of(files, path).value) is not None
    }
    return agreed(values, f"/{_CPU}/cpu*/power/pm_qos_resume_latency_us: no such file")


def _device(files: FileTree) -> Found:
    if not files.exists(DEVICE):
        return Found(because=f"/{DEVICE}: no such device")
    if not files.live:
        return Found(value="there")
    return Found(value="there, and this user may hold it" if files.writable(DEVICE) else "for root")


READERS: Final[dict[str, Reader]] = {
    "driver": of_file(f"{_CPU}/cpuidle/current_driver", {"none": "nothing idles the processors"}),
    "governor": of_file(f"{_CPU}/cpuidle/current_governor"),
    "states": _states,
    "deepest allowed": _deepest,
    "latency limit of processors": _limits,
    "latency device": _device,
}
