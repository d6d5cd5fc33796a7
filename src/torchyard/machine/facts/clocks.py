"""CPU clock facts: cpufreq driver, governor, limits, turbo, energy preference, idle states."""

from __future__ import annotations

from typing import Final

from torchyard.machine.facts.reading import (
    Reader,
    combined,
    common_line,
    file_reader,
    ghz,
    in_words,
    line_of,
    line_reader,
)
from torchyard.machine.system.cpu_states import NO_POLICY, base_clock, idle_states, policies
from torchyard.machine.system.file_tree import CPU, FileTree, Reading

NO_TURBO: Final = f"{CPU}/intel_pstate/no_turbo"
BOOST: Final = f"{CPU}/cpufreq/boost"


def of_policies(files: FileTree, name: str) -> Reading:
    """Read a file of every policy: one value if all agree."""
    reading = common_line(files, f"{CPU}/cpufreq/policy*/{name}")
    if reading.value is not None or files.paths(f"{CPU}/cpufreq/policy*"):
        return reading
    # Kernels before 4.3 and some copies have only the folder of each CPU.
    reading = line_of(files, f"{CPU}/cpu0/cpufreq/{name}")
    return reading if reading.value is not None else Reading(because=NO_POLICY)


def _policy_reader(name: str) -> Reader:
    return lambda files: of_policies(files, name)


driver: Final = _policy_reader("scaling_driver")
governor: Final = _policy_reader("scaling_governor")
preference: Final = _policy_reader("energy_performance_preference")
"""Readers of the cpufreq driver, the governor and the energy performance preference (EPP)."""


def turbo_off(files: FileTree) -> Reading:
    """Return `1` if turbo is off, `0` if it is on, as in Intel's `no_turbo`."""
    reading = line_of(files, NO_TURBO)
    if reading.value is not None:
        return reading
    boost = line_of(files, BOOST)
    if boost.value is None:
        boost = of_policies(files, "boost")
    if boost.value is None:
        return Reading(because=f"/{BOOST} and {reading.because}")
    return Reading(value={"0": "1", "1": "0"}.get(boost.value, f"boost is {boost.value}"))


def turbo(files: FileTree) -> Reading:
    """Return `on`, `off`, or the values that differ."""
    return in_words(turbo_off(files), lambda text: {"0": "on", "1": "off"}.get(text, text))


def _range(lowest: str, highest: str) -> Reader:
    """Return a reader of two files of every policy as one range."""

    def read_range(files: FileTree) -> Reading:
        ranges: dict[str, str] = {}
        for path in files.paths(f"{CPU}/cpufreq/policy*/{lowest}"):
            folder = path.rsplit("/", 1)[0]
            pair = line_of(files, path).value, line_of(files, f"{folder}/{highest}").value
            try:
                shown = " to ".join(dict.fromkeys(ghz(khz) for khz in pair if khz))
            except ValueError:
                shown = f"{pair[0]} to {pair[1]} (invalid)"
            ranges[folder.rsplit("policy", 1)[1]] = shown
        return combined(ranges, NO_POLICY)

    return read_range


def _now(files: FileTree) -> Reading:
    """Return the lowest and the highest present clock, as the driver reports them."""
    numbers = [
        number
        for path in files.paths(f"{CPU}/cpufreq/policy*/scaling_cur_freq")
        if (number := line_of(files, path).number) is not None
    ]
    if not numbers:
        return Reading(because=NO_POLICY)
    clocks = dict.fromkeys((ghz(str(min(numbers))), ghz(str(max(numbers)))))
    return Reading(value=" to ".join(clocks))


def _base(files: FileTree) -> Reading:
    clocks: dict[str, str] = {}
    for policy in policies(files):
        clock = base_clock(files, policy)
        if clock is not None:
            shown = ghz(str(clock.khz)) + (" (a guess: the maximum clock)" if clock.guessed else "")
            clocks[policy.rsplit("policy", 1)[1]] = shown
    return combined(clocks, NO_POLICY)


def _mode(files: FileTree) -> Reading:
    for driver_folder in ("intel_pstate", "amd_pstate"):
        reading = line_of(files, f"{CPU}/{driver_folder}/status")
        if reading.value is not None:
            return reading
    return Reading(because=f"/{CPU} has neither intel_pstate nor amd_pstate")


FREQUENCY: Final[dict[str, Reader]] = {
    "driver": driver,
    "driver mode": _mode,
    "governor": governor,
    "available governors": _policy_reader("scaling_available_governors"),
    "turbo": turbo,
    "base clock": _base,
    "hardware clock range": _range("cpuinfo_min_freq", "cpuinfo_max_freq"),
    "allowed clock range": _range("scaling_min_freq", "scaling_max_freq"),
    "present clocks": _now,
    "energy preference": preference,
    "energy bias": lambda files: common_line(files, f"{CPU}/cpu*/power/energy_perf_bias"),
}


DEVICE: Final = "dev/cpu_dma_latency"
"""A process that holds it open limits the wake-up latency."""
_NO_STATES: Final = f"/{CPU}/cpu*/cpuidle: no idle driver, or the hypervisor controls idling"


def _by_name(files: FileTree) -> dict[str, tuple[int, bool]]:
    """Return state -> (wake-up latency, disabled on all CPUs), lightest first."""
    states: dict[str, tuple[int, bool]] = {}
    for state in idle_states(files):
        disabled = line_of(files, f"{state.folder}/disable").number == 1
        latency_us, before = states.get(state.name, (state.latency_us, True))
        states[state.name] = (max(latency_us, state.latency_us), disabled and before)
    return dict(sorted(states.items(), key=lambda item: item[1][0]))


def _states(files: FileTree) -> Reading:
    shown = [
        f"{name} {latency_us} us" + (" (disabled)" if disabled else "")
        for name, (latency_us, disabled) in _by_name(files).items()
    ]
    return Reading(value=", ".join(shown)) if shown else Reading(because=_NO_STATES)


def _deepest(files: FileTree) -> Reading:
    allowed = [
        f"{name}, {latency_us} us wake-up latency"
        for name, (latency_us, disabled) in _by_name(files).items()
        if not disabled
    ]
    return Reading(value=allowed[-1]) if allowed else Reading(because=_NO_STATES)


def _limits(files: FileTree) -> Reading:
    words = {"0": "none", "n/a": "no idle states"}
    pattern = f"{CPU}/cpu*/power/pm_qos_resume_latency_us"
    return common_line(files, pattern, lambda text: words.get(text, f"{text} us"))


def _device(files: FileTree) -> Reading:
    if not files.exists(DEVICE):
        return Reading(because=f"/{DEVICE}: no such device")
    if not files.live:
        return Reading(value="present")
    return Reading(
        value="present, usable by this user" if files.writable(DEVICE) else "present, root only"
    )


IDLE: Final[dict[str, Reader]] = {
    "driver": file_reader(f"{CPU}/cpuidle/current_driver", {"none": "no idle driver"}),
    "governor": line_reader(f"{CPU}/cpuidle/current_governor"),
    "states": _states,
    "deepest allowed": _deepest,
    "latency limit per CPU": _limits,
    "latency device": _device,
}
