"""CPU clock facts: cpufreq driver, governor, limits, turbo, energy preference, idle states."""

from __future__ import annotations

from typing import Final

from torchyard.machine.facts.reading import (
    Reader,
    agreed,
    facts_of,
    ghz,
    in_words,
    line_of,
    of_file,
)
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact
from torchyard.machine.system.cpu_states import CPU, NO_POLICY, base_clock, idle_states, policies
from torchyard.machine.system.file_tree import FileTree, Found

FREQUENCY_SECTION: Final = "frequency"
_NO_TURBO: Final = f"{CPU}/intel_pstate/no_turbo"
_BOOST: Final = f"{CPU}/cpufreq/boost"


def read_frequency(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(FREQUENCY_SECTION, FREQUENCY_READERS, machine.files)


def of_policies(files: FileTree, name: str) -> Found:
    """A file of every policy: one value when all agree."""
    values = {
        path.split("/")[-2].removeprefix("policy"): text
        for path in files.paths(f"{CPU}/cpufreq/policy*/{name}")
        if (text := line_of(files, path).value) is not None
    }
    if values or files.paths(f"{CPU}/cpufreq/policy*"):
        return agreed(values, f"/{CPU}/cpufreq/policy*/{name}: no such file")
    # Kernels before 4.3 and some copies have the folder of each processor only.
    found = line_of(files, f"{CPU}/cpu0/cpufreq/{name}")
    return found if found.value is not None else Found(because=NO_POLICY)


def driver(files: FileTree) -> Found:
    """Which driver sets the clock."""
    return of_policies(files, "scaling_driver")


def governor(files: FileTree) -> Found:
    """What decides about the clock."""
    return of_policies(files, "scaling_governor")


def preference(files: FileTree) -> Found:
    """What the hardware is told to prefer (EPP)."""
    return of_policies(files, "energy_performance_preference")


def turbo_off(files: FileTree) -> Found:
    """`1` when clocks above the base clock are off, `0` when on, in Intel's sense for all."""
    found = line_of(files, _NO_TURBO)
    if found.value is not None:
        return found
    boost = line_of(files, _BOOST)
    if boost.value is None:
        boost = of_policies(files, "boost")
    if boost.value is None:
        return Found(because=f"/{_BOOST} and {found.because}")
    return Found(value={"0": "1", "1": "0"}.get(boost.value, f"boost is {boost.value}"))


def turbo(files: FileTree) -> Found:
    """`on`, `off`, or what differs."""
    return in_words(turbo_off(files), lambda text: {"0": "on", "1": "off"}.get(text, text))


def _range(lowest: str, highest: str) -> Reader:
    """Two files of every policy as one range."""

    def read_range(files: FileTree) -> Found:
        ranges: dict[str, str] = {}
        for path in files.paths(f"{CPU}/cpufreq/policy*/{lowest}"):
            folder = path.rsplit("/", 1)[0]
            pair = line_of(files, path).value, line_of(files, f"{folder}/{highest}").value
            try:
                shown = " to ".join(dict.fromkeys(ghz(khz) for khz in pair if khz))
            except ValueError:
                shown = f"{pair[0]} to {pair[1]} (no clocks)"
            ranges[folder.rsplit("policy", 1)[1]] = shown
        return agreed(ranges, NO_POLICY)

    return read_range


def _now(files: FileTree) -> Found:
    """The slowest and the fastest processor at this moment, as the driver sees them."""
    numbers = [
        number
        for path in files.paths(f"{CPU}/cpufreq/policy*/scaling_cur_freq")
        if (number := line_of(files, path).number) is not None
    ]
    if not numbers:
        return Found(because=NO_POLICY)
    clocks = dict.fromkeys((ghz(str(min(numbers))), ghz(str(max(numbers)))))
    return Found(value=" to ".join(clocks))


def _base(files: FileTree) -> Found:
    clocks: dict[str, str] = {}
    for policy in policies(files):
        clock = base_clock(files, policy)
        if clock is not None:
            shown = ghz(str(clock.khz)) + (", a guess: the highest one" if clock.guessed else "")
            clocks[policy.rsplit("policy", 1)[1]] = shown
    return agreed(clocks, NO_POLICY)


def _bias(files: FileTree) -> Found:
    values = {
        path.split("/")[-3].removeprefix("cpu"): text
        for path in files.paths(f"{CPU}/cpu*/power/energy_perf_bias")
        if (text := line_of(files, path).value) is not None
    }
    return agreed(values, f"/{CPU}/cpu*/power/energy_perf_bias: no such file")


def _mode(files: FileTree) -> Found:
    for driver_folder in ("intel_pstate", "amd_pstate"):
        found = line_of(files, f"{CPU}/{driver_folder}/status")
        if found.value is not None:
            return found
    return Found(because=f"/{CPU} has neither intel_pstate nor amd_pstate")


FREQUENCY_READERS: Final[dict[str, Reader]] = {
    "driver": driver,
    "driver's mode": _mode,
    "governor": governor,
    "governors to choose from": lambda files: of_policies(files, "scaling_available_governors"),
    "turbo": turbo,
    "base clock": _base,
    "clocks of the hardware": _range("cpuinfo_min_freq", "cpuinfo_max_freq"),
    "clocks allowed": _range("scaling_min_freq", "scaling_max_freq"),
    "clocks now": _now,
    "energy preference": preference,
    "energy bias": _bias,
}


IDLE_SECTION: Final = "idle"
_CPU: Final = "sys/devices/system/cpu"
DEVICE: Final = "dev/cpu_dma_latency"
"""Whoever holds it open limits how long waking may take."""
_NO_STATES: Final = f"/{_CPU}/cpu*/cpuidle: no idle driver, or the hypervisor idles for us"


def read_idle(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(IDLE_SECTION, IDLE_READERS, machine.files)


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


IDLE_READERS: Final[dict[str, Reader]] = {
    "driver": of_file(f"{_CPU}/cpuidle/current_driver", {"none": "nothing idles the processors"}),
    "governor": of_file(f"{_CPU}/cpuidle/current_governor"),
    "states": _states,
    "deepest allowed": _deepest,
    "latency limit of processors": _limits,
    "latency device": _device,
}
