"""Register every knob by name, and define the order in which knobs are written and restored.

To add a knob: write it in the module of its subject, list it in `KNOBS`, describe it in `knobs.toml`,
and give its place in the order below, with the reason.
"""

from __future__ import annotations

from graphlib import TopologicalSorter
from typing import Final

from torchyard.machine.knob import Knob
from torchyard.machine.knobs import (
    cores,
    cpu_power,
    gpu_clocks,
    interrupts,
    kernel_settings,
    nvidia_settings,
    process_knobs,
)

Order = tuple[tuple[str, str, str], ...]

WRITE_ORDER: Final[Order] = (
    ("smt", "governor", "policies of CPUs that go offline disappear"),
    ("smt", "interrupts", "the kernel moves interrupts away from CPUs that go offline"),
    ("smt", "isolation", "a partition may contain online CPUs only"),
    ("governor", "turbo", "some drivers reset no_turbo when the governor changes"),
    ("smt", "turbo", "policies of CPUs that go offline disappear"),
    ("smt", "preference", "policies of CPUs that go offline disappear"),
    ("smt", "frequency", "policies of CPUs that go offline disappear"),
    ("smt", "idle-states", "writes for CPUs that go offline have no effect"),
    ("governor", "preference", "the governor `performance` sets its own preference"),
    ("turbo", "frequency", "some drivers reset the maximum clock when boost changes"),
    ("irqbalance", "interrupts", "irqbalance would move the interrupts again"),
    ("workqueues", "isolation", "a partition removes its CPUs from the workqueue mask"),
    ("nvidia-persistence", "nvidia-clocks", "without it a lock is lost with the last client"),
    ("nvidia-persistence", "nvidia-memory-clock", "without it a lock is lost with the last client"),
    ("nvidia-persistence", "nvidia-power", "without it the limit is lost with the last client"),
)
"""(first, then, reason)"""

RESTORE_ORDER: Final[Order] = (
    ("isolation", "affinities", "tasks may use the cores only after isolation ends"),
    ("smt", "affinities", "tasks cannot be pinned to offline CPUs"),
    ("isolation", "workqueues", "the mask can be written only after the partition is removed"),
    ("isolation", "smt", "reverse of the write order"),
    ("smt", "frequency", "policies of offline CPUs cannot be written"),
    ("smt", "governor", "policies of offline CPUs cannot be written"),
    ("smt", "interrupts", "a mask may not contain offline CPUs"),
    ("smt", "turbo", "policies of offline CPUs cannot be written"),
    ("smt", "preference", "policies of offline CPUs cannot be written"),
    ("smt", "idle-states", "files of offline CPUs may be missing"),
    ("governor", "turbo", "some drivers reset no_turbo when the governor changes"),
    ("governor", "preference", "drivers refuse preferences while the governor is performance"),
    ("turbo", "frequency", "limits above the base clock are clamped while turbo is off"),
    ("interrupts", "irqbalance", "irqbalance must start with the original masks"),
    ("nvidia-clocks", "nvidia-persistence", "reverse of the write order"),
    ("nvidia-memory-clock", "nvidia-persistence", "reverse of the write order"),
    ("nvidia-power", "nvidia-persistence", "reverse of the write order"),
)


def in_order(names: list[str], order: Order) -> list[str]:
    """Sort names so that every pair of the order holds, and stably otherwise."""
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(names, ()))
    for first, then, _ in order:
        if first in names and then in names:
            sorter.add(then, first)
    sorter.prepare()
    place = {name: number for number, name in enumerate(names)}
    result: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=place.__getitem__)
        result.extend(ready)
        sorter.done(*ready)
    return result


KNOBS: Final[dict[str, Knob]] = {
    knob.name: knob
    for knob in (
        cores.AFFINITIES_KNOB,
        cores.SMT_KNOB,
        cpu_power.GOVERNOR_KNOB,
        cpu_power.TURBO_KNOB,
        cpu_power.PREFERENCE_KNOB,
        cpu_power.FREQUENCY_KNOB,
        cpu_power.IDLE_LATENCY_KNOB,
        cpu_power.IDLE_STATES_KNOB,
        interrupts.IRQBALANCE_KNOB,
        interrupts.INTERRUPTS_KNOB,
        interrupts.WORKQUEUES_KNOB,
        cores.ISOLATION_KNOB,
        kernel_settings.NUMA_BALANCING_KNOB,
        kernel_settings.HUGE_PAGES_KNOB,
        kernel_settings.SWAP_KNOB,
        kernel_settings.PERF_RATE_KNOB,
        kernel_settings.WATCHDOGS_KNOB,
        kernel_settings.ASLR_KNOB,
        nvidia_settings.PERSISTENCE_KNOB,
        gpu_clocks.GRAPHICS_CLOCK_KNOB,
        gpu_clocks.MEMORY_CLOCK_KNOB,
        nvidia_settings.POWER_LIMIT_KNOB,
        nvidia_settings.COMPUTE_MODE_KNOB,
        gpu_clocks.AMD_DETERMINISM_KNOB,
        process_knobs.PINNING_KNOB,
        process_knobs.PRIORITY_KNOB,
        process_knobs.OPENMP_KNOB,
        process_knobs.PROCESS_ASLR_KNOB,
    )
}
