"""Register every knob by name, and define the order in which knobs are written and restored.

To add a knob: write it in the module of its subject, list it in `KNOBS`, and give its place in the
order below, with the reason.
"""

from __future__ import annotations

from graphlib import TopologicalSorter
from typing import Final

from torchyard.machine.knob import Knob
from torchyard.machine.knobs import (
    affinities,
    core_isolation,
    cpu_frequency,
    gpu_clocks,
    idle,
    interrupts,
    kernel_timers,
    memory_settings,
    nvidia_settings,
    process_knobs,
    smt,
)
from torchyard.machine.knobs import cpu_frequency as governor
from torchyard.machine.knobs import cpu_frequency as preference
from torchyard.machine.knobs import cpu_frequency as turbo
from torchyard.machine.knobs import gpu_clocks as nvidia_clocks
from torchyard.machine.knobs import gpu_clocks as nvidia_memory_clock
from torchyard.machine.knobs import idle as idle_states
from torchyard.machine.knobs import interrupts as irqbalance
from torchyard.machine.knobs import interrupts as workqueues
from torchyard.machine.knobs import kernel_timers as watchdogs
from torchyard.machine.knobs import memory_settings as huge_pages
from torchyard.machine.knobs import memory_settings as numa_balancing
from torchyard.machine.knobs import memory_settings as swap
from torchyard.machine.knobs import nvidia_settings as nvidia_persistence
from torchyard.machine.knobs import nvidia_settings as nvidia_power
from torchyard.machine.knobs import process_knobs as pinning
from torchyard.machine.knobs import process_knobs as priority
from torchyard.machine.knobs import process_knobs as process_aslr

Order = tuple[tuple[str, str, str], ...]

WRITE_ORDER: Final[Order] = (
    ("smt", "governor", "policies of processors that go offline vanish"),
    ("smt", "interrupts", "the kernel moves interrupts away from processors that go offline"),
    ("smt", "isolation", "a partition must hold online processors only"),
    ("governor", "turbo", "some drivers reset no_turbo when the governor changes"),
    ("smt", "turbo", "policies of processors that go offline vanish"),
    ("smt", "preference", "policies of processors that go offline vanish"),
    ("smt", "frequency", "policies of processors that go offline vanish"),
    ("smt", "idle-states", "what is written for processors that go offline is written for nothing"),
    ("governor", "preference", "the governor performance brings its own preference along"),
    ("turbo", "frequency", "some drivers set the highest clock anew when boost changes"),
    ("irqbalance", "interrupts", "irqbalance would move the interrupts again"),
    ("workqueues", "isolation", "a partition takes its processors out of the workqueues' mask"),
    (
        "nvidia-persistence",
        "nvidia-clocks",
        "without it a locked clock is lost with the last client",
    ),
    (
        "nvidia-persistence",
        "nvidia-memory-clock",
        "without it a locked clock is lost with the last client",
    ),
    ("nvidia-persistence", "nvidia-power", "without it the limit is lost with the last client"),
)
"""(first, then, reason)"""

RESTORE_ORDER: Final[Order] = (
    ("isolation", "affinities", "tasks may have the cores only when these are shared again"),
    ("smt", "affinities", "nothing can be pinned to processors that are offline"),
    ("isolation", "workqueues", "the mask is only free again when the partition is gone"),
    ("isolation", "smt", "as it was written, backwards"),
    ("smt", "frequency", "policies of processors that are offline cannot be written"),
    ("smt", "governor", "policies of processors that are offline cannot be written"),
    ("smt", "interrupts", "a mask may not name processors that are offline"),
    ("smt", "turbo", "policies of processors that are offline cannot be written"),
    ("smt", "preference", "policies of processors that are offline cannot be written"),
    ("smt", "idle-states", "files of processors that are offline may be gone"),
    ("governor", "turbo", "some drivers reset no_turbo when the governor changes"),
    ("governor", "preference", "drivers refuse preferences while the governor is performance"),
    ("turbo", "frequency", "limits above the base clock need turbo back first or are clamped"),
    ("interrupts", "irqbalance", "irqbalance must find the masks as they were"),
    ("nvidia-clocks", "nvidia-persistence", "as it was written, backwards"),
    ("nvidia-memory-clock", "nvidia-persistence", "as it was written, backwards"),
    ("nvidia-power", "nvidia-persistence", "as it was written, backwards"),
)


def in_order(names: list[str], order: Order) -> list[str]:
    """The names so that every pair of the order holds; otherwise as they were given."""
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
        affinities.KNOB,
        smt.KNOB,
        governor.GOVERNOR_KNOB,
        turbo.TURBO_KNOB,
        preference.PREFERENCE_KNOB,
        cpu_frequency.FREQUENCY_KNOB,
        idle.IDLE_LATENCY_KNOB,
        idle_states.IDLE_STATES_KNOB,
        irqbalance.IRQBALANCE_KNOB,
        interrupts.INTERRUPTS_KNOB,
        workqueues.WORKQUEUES_KNOB,
        core_isolation.KNOB,
        numa_balancing.NUMA_BALANCING_KNOB,
        huge_pages.HUGE_PAGES_KNOB,
        swap.SWAP_KNOB,
        kernel_timers.PERF_RATE_KNOB,
        watchdogs.WATCHDOGS_KNOB,
        memory_settings.ASLR_KNOB,
        nvidia_persistence.PERSISTENCE_KNOB,
        nvidia_clocks.GRAPHICS_CLOCK_KNOB,
        nvidia_memory_clock.MEMORY_CLOCK_KNOB,
        nvidia_power.POWER_LIMIT_KNOB,
        nvidia_settings.COMPUTE_MODE_KNOB,
        gpu_clocks.AMD_DETERMINISM_KNOB,
        pinning.PINNING_KNOB,
        priority.PRIORITY_KNOB,
        process_knobs.OPENMP_KNOB,
        process_aslr.PROCESS_ASLR_KNOB,
    )
}
