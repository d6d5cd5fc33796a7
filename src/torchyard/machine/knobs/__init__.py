"""Every knob, by name. Adding one: a module with a KNOB, a line here, its order in `knob_order.py`."""

from __future__ import annotations

from typing import Final

from torchyard.machine.knob import Knob
from torchyard.machine.knobs import (
    affinities,
    amd_determinism,
    aslr,
    frequency,
    governor,
    huge_pages,
    idle_latency,
    idle_states,
    interrupts,
    irqbalance,
    isolation,
    numa_balancing,
    nvidia_clocks,
    nvidia_compute_mode,
    nvidia_memory_clock,
    nvidia_persistence,
    nvidia_power,
    openmp,
    perf_rate,
    pinning,
    preference,
    priority,
    process_aslr,
    smt,
    swap,
    turbo,
    watchdogs,
    workqueues,
)

__all__ = ["KNOBS"]

KNOBS: Final[dict[str, Knob]] = {
    knob.name: knob
    for knob in (
        affinities.KNOB,
        smt.KNOB,
        governor.KNOB,
        turbo.KNOB,
        preference.KNOB,
        frequency.KNOB,
        idle_latency.KNOB,
        idle_states.KNOB,
        irqbalance.KNOB,
        interrupts.KNOB,
        workqueues.KNOB,
        isolation.KNOB,
        numa_balancing.KNOB,
        huge_pages.KNOB,
        swap.KNOB,
        perf_rate.KNOB,
        watchdogs.KNOB,
        aslr.KNOB,
        nvidia_persistence.KNOB,
        nvidia_clocks.KNOB,
        nvidia_memory_clock.KNOB,
        nvidia_power.KNOB,
        nvidia_compute_mode.KNOB,
        amd_determinism.KNOB,
        pinning.KNOB,
        priority.KNOB,
        openmp.KNOB,
        process_aslr.KNOB,
    )
}
