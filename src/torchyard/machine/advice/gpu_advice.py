"""Advise on GPUs, from one reading of them.

Sizes of effects: a GPU locked below its power limit keeps its clock; unlocked, the clock moves by
several percent between days (4 % on one continuous-integration fleet, 1384 to 1755 MHz on H100
cards in one badly cooled server).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchyard.machine.advice.activity import Activity
from torchyard.machine.facts import GpuView, read_gpus
from torchyard.machine.gpu.amd import AmdGpu
from torchyard.machine.gpu.library import GpuProcess, on_off
from torchyard.machine.gpu.nvidia import HOLDS_DOWN, THERMAL, USER_SETTING, NvidiaGpu
from torchyard.machine.knob import Machine
from torchyard.machine.model import Advice

_QUIET_GPU: Final = "sudo torchyard machine quiet --profile gpu"
_HARDWARE: Final = HOLDS_DOWN - THERMAL - {"power cap"}
_MOST_NAMED: Final = 3
"""Processes that are named; the rest is counted."""


def advise_reading(view: GpuView) -> tuple[Advice, ...]:
    """Return advice for every GPU, unsorted."""
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


def advise(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """Yield advice for every GPU."""
    yield from advise_reading(read_gpus(machine))
