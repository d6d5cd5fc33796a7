"""How clocks are set: driver, governor, limits, turbo, preference."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Fact
from torchyard.machine.facts.reading import Reader, agreed, facts_of, ghz, in_words, line_of
from torchyard.machine.file_tree import FileTree, Found
from torchyard.machine.knob import Machine

__all__ = [
    "SECTION",
    "base_khz",
    "driver",
    "governor",
    "highest_khz",
    "of_policies",
    "preference",
    "read",
    "turbo",
    "turbo_off",
]

SECTION: Final = "frequency"
_CPU: Final = "sys/devices/system/cpu"
_NO_TURBO: Final = f"{_CPU}/intel_pstate/no_turbo"
_BOOST: Final = f"{_CPU}/cpufreq/boost"
_NO_DRIVER: Final = f"/{_CPU}/cpufreq has no policy: no driver, or the hypervisor hides it"


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def of_policies(files: FileTree, name: str) -> Found:
    """A file of every policy: one value when all agree."""
    values = {
        path.split("/")[-2].removeprefix("policy"): text
        for path in files.paths(f"{_CPU}/cpufreq/policy*/{name}")
        if (text := line_of(files, path).value) is not None
    }
    if values or files.paths(f"{_CPU}/cpufreq/policy*"):
        return agreed(values, f"/{_CPU}/cpufreq/policy*/{name}: no such file")
    # Kernels before 4.3 and some copies have the folder of each processor only.
    found = line_of(files, f"{_CPU}/cpu0/cpufreq/{name}")
    return found if found.value is not None else Found(because=_NO_DRIVER)


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


def base_khz(files: FileTree) -> int | None:
    """The clock without turbo, where the driver tells; of the first policy."""
    for name in ("base_frequency", "amd_pstate_nominal_freq"):
        for path in files.paths(f"{_CPU}/cpufreq/policy*/{name}")[:1]:
            return line_of(files, path).number
    for path in files.paths(f"{_CPU}/cpu*/acpi_cppc/nominal_freq")[:1]:
        megahertz = line_of(files, path).number
        return megahertz * 1000 if megahertz else None
    return None


def highest_khz(files: FileTree) -> int | None:
    """The highest clock of the hardware; of the first policy."""
    for path in files.paths(f"{_CPU}/cpufreq/policy*/cpuinfo_max_freq")[:1]:
        return line_of(files, path).number
    return None


def _range(lowest: str, highest: str) -> Reader:
    """Two files of every policy as one range."""

    def read_range(files: FileTree) -> Found:
        ranges: dict[str, str] = {}
        for path in files.paths(f"{_CPU}/cpufreq/policy*/{lowest}"):
            folder = path.rsplit("/", 1)[0]
            pair = line_of(files, path).value, line_of(files, f"{folder}/{highest}").value
            try:
                shown = " to ".join(dict.fromkeys(ghz(khz) for khz in pair if khz))
            except ValueError:
                shown = f"{pair[0]} to {pair[1]} (no clocks)"
            ranges[folder.rsplit("policy", 1)[1]] = shown
        return agreed(ranges, _NO_DRIVER)

    return read_range


def _now(files: FileTree) -> Found:
    """The slowest and the fastest processor at this moment, as the driver sees them."""
    numbers = [
        number
        for path in files.paths(f"{_CPU}/cpufreq/policy*/scaling_cur_freq")
        if (number := line_of(files, path).number) is not None
    ]
    if not numbers:
        return Found(because=_NO_DRIVER)
    clocks = dict.fromkeys((ghz(str(min(numbers))), ghz(str(max(numbers)))))
    return Found(value=" to ".join(clocks))


def _base(files: FileTree) -> Found:
    khz = base_khz(files)
    return Found(value=ghz(str(khz))) if khz else Found(because="the driver does not tell it")


def _bias(files: FileTree) -> Found:
    values = {
        path.split("/")[-3].removeprefix("cpu"): text
        for path in files.paths(f"{_CPU}/cpu*/power/energy_perf_bias")
        if (text := line_of(files, path).value) is not None
    }
    return agreed(values, f"/{_CPU}/cpu*/power/energy_perf_bias: no such file")


def _mode(files: FileTree) -> Found:
    found = line_of(files, f"{_CPU}/intel_pstate/status")
    return found if found.value is not None else line_of(files, f"{_CPU}/amd_pstate/status")


READERS: Final[dict[str, Reader]] = {
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
