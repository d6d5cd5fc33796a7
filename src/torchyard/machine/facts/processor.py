"""CPU facts: model, microcode, vector instructions, mitigations, topology, clocks and idle states.

Topology: sockets, cores, SMT, NUMA nodes, caches.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.core.units import format_count
from torchyard.machine.facts.reading import (
    Reader,
    as_fact,
    as_reading,
    combined,
    common_line,
    file_reader,
    ghz,
    in_words,
    line_of,
    line_reader,
)
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact
from torchyard.machine.system.cores import NO_POLICY, Topology, base_clock, idle_states, policies
from torchyard.machine.system.file_tree import CPU, FileTree, Reading

PROCESSOR_SECTION: Final = "processor"
_INFO: Final = "proc/cpuinfo"
_VULNERABILITIES: Final = "sys/devices/system/cpu/vulnerabilities"

ARM_DESIGNS: Final = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x41", "0xd84"): "Neoverse-V3",
    ("0x41", "0xd8e"): "Neoverse-N3",
    ("0x46", "0x001"): "A64FX",
    ("0x48", "0xd01"): "Kunpeng-920",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1A",
}
"""(implementer, part) of Arm's designs, as the kernel's cputype.h names them."""

VECTORS: Final = (
    *("sse4_2", "avx", "avx2", "fma", "f16c"),
    *("avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "sve", "sve2", "i8mm", "bf16", "sme"),
)
"""Instruction sets that PyTorch's kernels use, under the kernel's names."""


def read_processor(machine: Machine) -> tuple[Fact, ...]:
    """Read the section. cpuinfo is read once: the kernel queries every core's clock for it."""
    reading = machine.files.read(_INFO)
    fields = reading.fields
    because = reading.because or "cpuinfo does not report it"
    vectors = ", ".join(name for name in VECTORS if name in _flags(fields))
    readings = {
        "architecture": architecture(machine.files),
        "model": _model(reading),
        "design": as_reading(_design(fields), because),
        "microcode": as_reading(fields.get("microcode"), because),
        "vector instructions": as_reading(vectors, because),
        "mitigations": _mitigations(machine.files),
    }
    return tuple(as_fact(PROCESSOR_SECTION, name, value) for name, value in readings.items())


def architecture(files: FileTree) -> Reading:
    """Return `x86_64` or `aarch64`; for copies of kernels before 6.1, inferred from cpuinfo."""
    reading = line_of(files, "proc/sys/kernel/arch")
    if reading.value is not None:
        return reading
    if files.live:
        return Reading(value=os.uname().machine)
    fields = files.read(_INFO).fields
    if "CPU implementer" in fields:
        return Reading(value="aarch64")
    return Reading(value="x86_64") if "lm" in _flags(fields) else reading


def model(files: FileTree) -> Reading:
    """Return the CPU model, or its part number for Arm CPUs without a name."""
    return _model(files.read(_INFO))


def flags(files: FileTree) -> tuple[str, ...]:
    """Return the features of the first CPU (flags on x86)."""
    return _flags(files.read(_INFO).fields)


def _model(reading: Reading) -> Reading:
    if reading.value is None:
        return reading
    fields = reading.fields
    if fields.get("model name"):
        return Reading(value=fields["model name"])
    if "CPU part" in fields:
        implementer = fields.get("CPU implementer", "?")
        return Reading(value=f"Arm implementer {implementer} part {fields['CPU part']}")
    return Reading(because="cpuinfo reports no model")


def _design(fields: dict[str, str]) -> str | None:
    if "CPU part" in fields:
        name = ARM_DESIGNS.get((fields.get("CPU implementer", ""), fields["CPU part"]))
        revision = fields.get("CPU revision", "?")
        return name and f"{name} r{_number(fields.get('CPU variant', '?'))}p{revision}"
    if "cpu family" in fields:
        family, number = fields["cpu family"], fields.get("model", "?")
        return f"family {family} model {number} stepping {fields.get('stepping', '?')}"
    return None


def _number(text: str) -> str:
    try:
        return str(int(text, 0))
    except ValueError:
        return text


def _flags(fields: dict[str, str]) -> tuple[str, ...]:
    return tuple((fields.get("flags") or fields.get("Features") or "").split())


def _mitigations(files: FileTree) -> Reading:
    """Count the CPU vulnerabilities by state: mitigations change the speed."""
    counts: Counter[str] = Counter()
    for name in files.names(_VULNERABILITIES):
        text = files.read(f"{_VULNERABILITIES}/{name}").text
        word = text.partition(":")[0].strip()
        counts["in force" if word == "Mitigation" else word.lower() or "unreadable"] += 1
    shown = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return as_reading(shown, f"/{_VULNERABILITIES} is empty or missing")


_NODE: Final = "sys/devices/system/node"

_SMT_WORDS: Final = {
    "on": "on",
    "off": "off, can be enabled",
    "forceoff": "off until the next boot",
    "notsupported": "not supported by the CPU",
    "notimplemented": "not controllable by this kernel",
    "-1": "not set up by the kernel",
}


_SMT: Final = f"{CPU}/smt/control"
smt: Final = line_reader(_SMT)
"""Reader of the SMT state as the kernel reports it."""


def _processors(files: FileTree) -> Reading:
    present = files.read(f"{CPU}/present").cpus

    def rephrase(text: str) -> str:
        cpus = cpus_of_list(text)
        missing = tuple(sorted(set(present) - set(cpus)))
        return f"{len(cpus)} online ({cpu_list(cpus)})" + (
            f", {len(missing)} offline ({cpu_list(missing)})" if missing else ""
        )

    return in_words(line_of(files, f"{CPU}/online"), rephrase)


def _cores(files: FileTree) -> Reading:
    physical = Topology.read(files).physical
    if not physical or not files.exists(f"{CPU}/cpu{physical[0][0]}/topology"):
        return Reading(because=f"/{CPU}/cpu*/topology is missing")
    sockets = {
        line_of(files, f"{CPU}/cpu{core[0]}/topology/physical_package_id").value
        for core in physical
    }
    threads = max(len(core) for core in physical)
    shown = f"{len(physical)} in {format_count(len(sockets), 'socket')}"
    return Reading(value=f"{shown}, {format_count(threads, 'thread')} per core")


def _nodes(files: FileTree) -> Reading:
    nodes = files.read(f"{_NODE}/online").cpus
    if not nodes:
        return files.read(f"{_NODE}/online") if not files.exists(_NODE) else Reading(because="none")
    lists = {node: files.read(f"{_NODE}/node{node}/cpulist").cpus for node in nodes}
    shown = ", ".join(
        f"node {node} has {cpu_list(cpus) or 'memory only'}" for node, cpus in lists.items()
    )
    return Reading(value=f"{len(nodes)}: {shown}")


def _caches(files: FileTree) -> Reading:
    """Read the caches of the first online CPU: others are the same on nearly all machines."""
    first = next(iter(Topology.read(files).online), 0)
    shown: list[str] = []
    for folder in files.paths(f"{CPU}/cpu{first}/cache/index*"):
        level, kind, size = (
            line_of(files, f"{folder}/{name}").value for name in ("level", "type", "size")
        )
        if level and size:
            name = f"L{level}" + {"Data": " data", "Instruction": " instruction"}.get(
                kind or "", ""
            )
            shared = len(files.read(f"{folder}/shared_cpu_list").cpus)
            shown.append(f"{name} {size}" + (f" shared by {shared}" if shared > 1 else ""))
    if not shown:
        return Reading(because=f"/{CPU}/cpu{first}/cache is empty or missing")
    return Reading(value=", ".join(shown))


TOPOLOGY: Final[dict[str, Reader]] = {
    "CPUs": _processors,
    "cores": _cores,
    "simultaneous multithreading": line_reader(
        _SMT, lambda text: _SMT_WORDS.get(text, f"{text} threads per core")
    ),
    "NUMA nodes": _nodes,
    "caches": _caches,
}


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


frequency_driver: Final = _policy_reader("scaling_driver")
governor: Final = _policy_reader("scaling_governor")
energy_preference: Final = _policy_reader("energy_performance_preference")
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
    "driver": frequency_driver,
    "driver mode": _mode,
    "governor": governor,
    "available governors": _policy_reader("scaling_available_governors"),
    "turbo": turbo,
    "base clock": _base,
    "hardware clock range": _range("cpuinfo_min_freq", "cpuinfo_max_freq"),
    "allowed clock range": _range("scaling_min_freq", "scaling_max_freq"),
    "present clocks": _now,
    "energy preference": energy_preference,
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
