"""Everything about a machine at one moment: facts, current activity and ranked advice.

Advisers say what makes measurements worse on this machine, with the evidence and a suggested fix.
They read only, and judge with the readers of `facts`; what a knob could write is asked of the knobs.
This module judges limits, settings, kernel and virtualization; `activity` the rest.

Sizes of effects: a GPU locked below its power limit keeps its clock; unlocked, the clock moves by
several percent between days (4 % on one continuous-integration fleet, 1384 to 1755 MHz on H100
cards in one badly cooled server).

To add an adviser, write a function `(machine, activity) -> Iterator[Advice]` and add it to `ADVISERS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from torchyard.core.cpu_lists import cpu_list
from torchyard.errors import UsageError
from torchyard.machine.advice.activity import (
    WINDOW_S,
    Activity,
    activity_facts,
    advise_activity,
    observe_activity,
)
from torchyard.machine.facts import (
    GpuView,
    isolation,
    load,
    memory,
    processor,
    read_gpus,
    read_sections,
    software,
)
from torchyard.machine.facts.isolation import boot_values
from torchyard.machine.gpu.amd import AmdGpu
from torchyard.machine.gpu.library import GpuProcess, on_off
from torchyard.machine.gpu.nvidia import HOLDS_DOWN, THERMAL, USER_SETTING, NvidiaGpu
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import EFFECTS, Advice, MachineView, QuietRequest, Setting
from torchyard.machine.system.cores import choose_cores, idle_states
from torchyard.machine.system.file_tree import FileTree

_QUIET_GPU: Final = "sudo torchyard machine quiet --profile gpu"
_HARDWARE: Final = HOLDS_DOWN - THERMAL - {"power cap"}
_MOST_NAMED: Final = 3
"""Processes that are named; the rest is counted."""


def advise_reading(view: GpuView) -> tuple[Advice, ...]:
    """Return advice on every GPU, unsorted."""
    nvidia = (advice for gpu in view.nvidia for advice in _nvidia(gpu))
    amd = (advice for card in view.amd for advice in _amd(card))
    return (*nvidia, *amd)


def _nvidia(gpu: NvidiaGpu) -> Iterator[Advice]:
    label = f"GPU {gpu.index}"
    reasons = set(gpu.reasons.value or ())
    yield from _processes(label, gpu.processes.value or ())
    yield from _held_down(label, reasons)
    yield from _power(label, gpu.power_limit_w.value, gpu.default_power_limit_w.value)
    if gpu.persistence.value is False:
        yield Advice(
            name="gpu-persistence",
            effect="medium",
            what=f"{label}: persistence mode is off",
            why="the driver unloads when the last client exits: every start waits for it, and "
            "a clock lock is lost",
            fix=f"{_QUIET_GPU} --only nvidia-persistence",
            needs_root=True,
        )
    if gpu.locks_clocks.value and gpu.reasons.value is not None and USER_SETTING not in reasons:
        yield Advice(
            name="gpu-clocks",
            effect="large",
            what=f"{label}: its clock is probably not locked",
            why="the clock follows power and temperature, so the same kernel takes longer on a "
            "warm card; around 4 % from day to day is reported without a lock",
            fix=_QUIET_GPU,
            needs_root=True,
        )
    yield from _memory_checks(label, gpu)
    yield from _slices(label, gpu)


def _held_down(label: str, reasons: set[str]) -> Iterator[Advice]:
    hot = sorted(reasons & THERMAL)
    braked = sorted(reasons & _HARDWARE)
    if hot or braked:
        yield Advice(
            name="gpu-slowdown",
            effect="large",
            what=f"{label}: throttled now ({', '.join([*hot, *braked])})",
            why="a hardware slowdown halves the clock or worse; a thermal one follows the "
            "temperature",
            fix="let it cool down, check its fans and power supply, or lock a lower "
            "clock: sudo torchyard machine quiet --profile gpu --gpu-clock MHZ",
            unfit=True,
        )
    if "power cap" in reasons:
        yield Advice(
            name="gpu-power-cap",
            effect="medium",
            what=f"{label}: its clock is limited by the power cap now",
            why="at the power cap the clock depends on temperature and on the data; below it, "
            "it is constant",
            fix=_QUIET_GPU,
            needs_root=True,
        )


def _processes(label: str, processes: tuple[GpuProcess, ...]) -> Iterator[Advice]:
    others = [process for process in processes if process.owner == "other"]
    computing = [process for process in others if process.kind == "compute"]
    drawing = [process for process in others if process.kind == "graphics"]
    hidden = sum(process.owner == "unknown" for process in processes)
    if computing:
        yield Advice(
            name="gpu-processes",
            effect="large",
            what=f"{label}: used by other processes ({_listed(computing)})",
            why="GPUs time-slice between processes; another process can take any share",
            fix="wait for them, or measure on another GPU (CUDA_VISIBLE_DEVICES)",
            unfit=True,
        )
    if drawing:
        yield Advice(
            name="gpu-display",
            effect="small",
            what=f"{label}: drives a display ({_listed(drawing)})",
            why="graphics and compute are time-sliced",
            fix="measure without a desktop, or on another GPU",
        )
    if hidden:
        yield Advice(
            name="gpu-hidden-processes",
            effect="medium",
            what=f"{label}: {hidden} process(es) not visible from here",
            why="in a container it is unknown whether they are ours",
            fix="check on the host: nvidia-smi",
        )


def _power(label: str, limit_w: float | None, default_w: float | None) -> Iterator[Advice]:
    if limit_w is None or default_w is None or limit_w >= default_w:
        return
    yield Advice(
        name="gpu-power-limit",
        effect="medium",
        what=f"{label}: power is limited to {limit_w:.0f} of {default_w:.0f} W",
        why="the limit was lowered: numbers are not comparable with other cards of this type",
        fix=f"{_QUIET_GPU} --only nvidia-power" if label.startswith("GPU") else "",
        needs_root=True,
    )


def _memory_checks(label: str, gpu: NvidiaGpu) -> Iterator[Advice]:
    now, pending = gpu.ecc.value, gpu.pending_ecc.value
    if now is None or pending is None:
        return
    if now != pending:
        yield Advice(
            name="gpu-ecc",
            effect="medium",
            what=f"{label}: ECC is {on_off(now)} now and {on_off(pending)} after the next reset",
            why="numbers before and after the reset may not be comparable: on some cards ECC "
            "costs bandwidth",
            fix="reset the GPU now, or revert the change: nvidia-smi -e",
            needs_root=True,
            needs_reboot=True,
        )
    elif not now:
        yield Advice(
            name="gpu-ecc",
            effect="small",
            what=f"{label}: ECC is off",
            why="on some cards ECC costs bandwidth: compare only with cards that have it off, too",
        )


def _slices(label: str, gpu: NvidiaGpu) -> Iterator[Advice]:
    if not gpu.mig.value:
        return
    yield Advice(
        name="gpu-mig",
        effect="medium",
        what=f"{label}: partitioned with MIG",
        why="MIG instances share power, clock and the PCIe link: the load of other instances "
        "is not visible, and NVML reports no clocks or event reasons for an instance",
        fix="measure on a whole GPU: nvidia-smi -mig 0",
        needs_root=True,
    )


def _amd(card: AmdGpu) -> Iterator[Advice]:
    label = f"AMD {card.card}"
    yield from _processes(label, card.processes.value or ())
    yield from _power(label, card.power_limit_w.value, card.default_power_limit_w.value)
    temperature, limit = card.temperature_c.value, card.slowdown_temperature_c.value
    if temperature is not None and limit and temperature >= limit:
        yield Advice(
            name="gpu-slowdown",
            effect="large",
            what=f"{label}: at {temperature} °C, above its slowdown temperature ({limit} °C)",
            why="a thermal slowdown follows the temperature of the card",
            fix="let it cool down and check its fans",
            unfit=True,
        )
    level = card.performance_level.value
    if level not in (None, "perf_determinism"):
        yield Advice(
            name="gpu-clocks",
            effect="large",
            what=f"{label}: its clock is not capped (performance level {level})",
            why="the clock follows power and temperature; a lower cap keeps it constant",
            fix=_QUIET_GPU,
            needs_root=True,
        )


def _listed(processes: list[GpuProcess]) -> str:
    named = [f"{process.pid} {process.name}".strip() for process in processes[:_MOST_NAMED]]
    more = len(processes) - _MOST_NAMED
    return ", ".join([*named, *([f"{more} more"] if more > 0 else [])])


LITTLE_MEMORY: Final = 0.05
"""Share of all memory; around there the kernel starts to reclaim pages."""


def advise_limits(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """Yield advice on the limits of this process."""
    yield from _quota(machine)
    yield from _unbalanced(machine)
    yield from _little_memory(machine)


def _quota(machine: Machine) -> Iterator[Advice]:
    allowed = len(isolation.allowed(machine.files).cpus)
    try:
        quota = float(isolation.quota_processors(machine.files).value or "inf")
    except ValueError:  # `all`
        return
    if quota < allowed:
        yield Advice(
            name="quota",
            effect="large",
            what=f"this process may run on {allowed} CPUs, but its quota is {quota:g} CPUs",
            why="with more threads than that, the kernel throttles all of them until the next "
            "period, usually 100 ms",
            fix=f"OMP_NUM_THREADS={max(1, int(quota))}, or give the container whole CPUs "
            "(docker run --cpuset-cpus)",
        )


def _unbalanced(machine: Machine) -> Iterator[Advice]:
    """Advise on CPUs of isolcpus, between which the kernel does not balance load."""
    isolated_cpus = set(isolation.isolated_cpus(machine.files))
    own = tuple(cpu for cpu in isolation.allowed(machine.files).cpus if cpu in isolated_cpus)
    if len(own) > 1:
        yield Advice(
            name="unbalanced",
            effect="large",
            what=f"this process may use CPUs {cpu_list(own)}, which have no load balancing",
            why="unless each thread is pinned, all threads of a process may stay on one of these "
            "CPUs",
            fix="OMP_PROC_BIND=true OMP_PLACES=threads, or use them for single-threaded work only",
        )


def _little_memory(machine: Machine) -> Iterator[Advice]:
    total = memory.amount_kib(machine.files, "MemTotal")
    available = memory.amount_kib(machine.files, "MemAvailable")
    if total and available is not None and available < LITTLE_MEMORY * total:
        yield Advice(
            name="little-memory",
            effect="large",
            what=f"{available / total:.1%} of the memory is available",
            why="a measurement that needs more swaps pages out, its own among them",
            fix="stop the programs that use the memory",
        )


_MOST_VALUES: Final = 3
_LATENCY: Final = "idle-latency"


def advise_settings(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """Yield one advice for each default CPU knob that would write something.

    Process knobs are excluded, because they do not describe the machine. GPUs have advice of their
    own, which uses more than settings.
    """
    for knob in KNOBS.values():
        if knob.profile != "cpu" or not knob.described.default or knob.reach == "process":
            continue
        if knob.name == _LATENCY and not idle_states(machine.files):
            continue  # the device exists, but there are no idle states
        changes = [
            setting
            for setting in knob.survey(machine, QuietRequest()).settings
            if setting.wanted is not None
            and not knob.same(setting.place, setting.found, setting.wanted)
        ]
        if changes:
            yield Advice(
                name=knob.name,
                effect=knob.described.effect,
                what=f"{knob.described.about}: {_values(changes)}",
                why=knob.described.why,
                fix=f"{'sudo ' * knob.needs_root}torchyard machine quiet --only {knob.name}",
                needs_root=knob.needs_root,
            )


def _values(changes: list[Setting]) -> str:
    """Format present and requested values by file name, with the number of locations."""
    counts = Counter(
        (_file_name(setting.place), setting.found or "none", setting.wanted or "none")
        for setting in changes
    )
    shown = [
        f"{name}{present} instead of {requested}" + (f" ({count} times)" if count > 1 else "")
        for (name, present, requested), count in counts.most_common(_MOST_VALUES)
    ]
    more = len(counts) - _MOST_VALUES
    return ", ".join([*shown, *([f"{more} more"] if more > 0 else [])])


def _file_name(place: str) -> str:
    """Return `no_turbo ` for a path; empty for numbered files, devices and other locations."""
    name = place.rpartition("/")[2]
    return "" if name == place or name[-1:].isdecimal() or place.startswith("dev/") else f"{name} "


_SLOW_CLOCKS: Final = frozenset({"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies", "xen"})
"""Clock sources that need a system call to read."""


def advise_surroundings(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """Yield advice on conditions that settings cannot change at run time."""
    yield from _guest(machine.files)
    yield from _cores(machine.files)
    yield from _tickless_clock(machine.files)
    yield from _clock_source(machine.files)
    yield from _one_layout(machine.files)


def _guest(files: FileTree) -> Iterator[Advice]:
    hypervisor = software.virtualisation(files).value or ""
    if hypervisor.startswith(software.GUEST_OF):
        yield Advice(
            name="guest",
            effect="medium",
            what=f"this machine is a {hypervisor}",
            why="other guests share caches, memory bandwidth and the clock, and are not visible "
            "here; published spreads of benchmarks are 0.03 % to over 100 % across clouds, and "
            "2.7 % on one vendor's rented runners against 0.6 % on its own machines",
            fix="compare within one run, in pairs of random order, as `torchyard bench` does; "
            "numbers of different days or instances are not comparable",
        )


def _cores(files: FileTree) -> Iterator[Advice]:
    if isolation.isolated_cpus(files):
        return
    try:
        choose_cores(files, "auto")
    except (UsageError, IndexError):  # one core, or no topology at all
        return
    yield Advice(
        name="cores",
        effect="medium",
        what="no core is isolated for measuring",
        why="the kernel and other programs run on every core; published for a microbenchmark of "
        "36.6 ns: isolation reduced the standard deviation from 1.3 to 0.1 ns at the same median",
        fix="sudo torchyard machine quiet --cores auto -- COMMAND",
        needs_root=True,
    )
    if "isolcpus" not in boot_values(files):
        yield Advice(
            name="cores-at-boot",
            effect="small",
            what="no cores are isolated at boot",
            why="isolation at boot also removes timer ticks and RCU callbacks, which is not "
            "possible later; for dedicated benchmark machines",
            fix="torchyard machine boot --cores auto",
            needs_root=True,
            needs_reboot=True,
        )


def _tickless_clock(files: FileTree) -> Iterator[Advice]:
    tickless = files.read("sys/devices/system/cpu/nohz_full").cpus
    if tickless and processor.frequency_driver(files).value == "intel_pstate":
        yield Advice(
            name="tickless-clock",
            effect="large",
            what="nohz_full CPUs with the intel_pstate driver",
            why="the driver's governor needs the timer tick to detect load, so these CPUs may stay "
            "at a low clock (Red Hat bug 1378529)",
            fix="sudo torchyard machine quiet --only governor, or intel_pstate=passive",
            needs_root=True,
        )


def _clock_source(files: FileTree) -> Iterator[Advice]:
    source = software.clock_source(files).value
    if source in _SLOW_CLOCKS:
        yield Advice(
            name="clock-source",
            effect="small",
            what=f"the clock source is {source}",
            why="each read of the clock is a system call, which disturbs short measurements",
            fix="check the kernel log for why it rejected the TSC; "
            "clocksource=tsc tsc=reliable keeps it",
            needs_reboot=True,
        )


def _one_layout(files: FileTree) -> Iterator[Advice]:
    if memory.randomisation(files).value == "0":
        yield Advice(
            name="one-layout",
            effect="medium",
            what="address space layout randomization is off",
            why="launches agree better (measured standard deviation 1.2 instead of 3.2 %), but all "
            "share one memory layout, whose bias then counts as a difference between two builds",
            fix="sudo torchyard machine quiet --aslr on",
            needs_root=True,
        )


ADVISERS: Final[tuple[Callable[[Machine, Activity], Iterable[Advice]], ...]] = (
    advise_activity,
    advise_limits,
    advise_settings,
    advise_surroundings,
    lambda machine, _: advise_reading(read_gpus(machine)),
)


def advise(machine: Machine, activity: Activity) -> tuple[Advice, ...]:
    """Return all advice: what makes the machine unfit first, then by effect."""
    advice = [item for adviser in ADVISERS for item in adviser(machine, activity)]
    return tuple(sorted(advice, key=lambda item: (not item.unfit, EFFECTS.index(item.effect))))


def view_machine(machine: Machine, *, window_s: float = WINDOW_S) -> MachineView:
    """Return facts and advice. Samples the load for `window_s`; a copy of a machine takes no time.

    The load is sampled first, because running compilers for their versions would appear in it.
    """
    activity = observe_activity(machine, window_s=window_s if machine.files.live else 0.0)
    facts = list(read_sections(machine))
    last = max(
        (n for n, fact in enumerate(facts, start=1) if fact.section == load.LOAD_SECTION), default=0
    )
    facts[last:last] = activity_facts(activity)
    return MachineView(facts=tuple(facts), advice=advise(machine, activity))
