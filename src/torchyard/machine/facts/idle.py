"""What processors do while they wait: idle states, how long waking takes, and limits on that."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Fact
from torchyard.machine.facts.reading import Reader, agreed, facts_of, line_of, of_file
from torchyard.machine.file_tree import FileTree, Found
from torchyard.machine.idle_state import idle_states
from torchyard.machine.knob import Machine

__all__ = ["DEVICE", "SECTION", "read"]

SECTION: Final = "idle"
_CPU: Final = "sys/devices/system/cpu"
DEVICE: Final = "dev/cpu_dma_latency"
"""Whoever holds it open limits how long waking may take."""
_NO_STATES: Final = f"/{_CPU}/cpu*/cpuidle: no idle driver, or the hypervisor idles for us"


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def _by_name(files: FileTree) -> dict[str, tuple[int, bool]]:
    """State -> (how long waking takes, whether it is disabled everywhere), lightest first."""
    found: dict[str, tuple[int, bool]] = {}
    for state in idle_states(files):
        disabled = line_of(files, f"{state.folder}/disable").number == 1
        latency_us, before = found.get(state.name, (state.latency_us, True))
        found[state.name] = (max(latency_us, state.latency_us), disabled and before)
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def _states(files: FileTree) -> Found:
    shown = [
        f"{name} {latency_us} us" + (" (disabled)" if disabled else "")
        for name, (latency_us, disabled) in _by_name(files).items()
    ]
    return Found(value=", ".join(shown)) if shown else Found(because=_NO_STATES)


def _deepest(files: FileTree) -> Found:
    allowed = [
        f"{name}, {latency_us} us to wake"
        for name, (latency_us, disabled) in _by_name(files).items()
        if not disabled
    ]
    return Found(value=allowed[-1]) if allowed else Found(because=_NO_STATES)


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
