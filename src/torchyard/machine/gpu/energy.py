"""The energy counter of a GPU: joules since its driver was loaded. Reads only, needs no root.

NVIDIA's cards since Volta have one. It counts the whole card, so it speaks for a workload only while
nothing else computes on it, and it moves in steps: a stretch of time must be long beside a step.
"""

from __future__ import annotations

from typing import Any

from torchyard.machine.gpu.answer import Answer, ask

__all__ = ["read_energy_j"]


def read_energy_j(nvml: Any, handle: Any) -> Answer[float]:
    """What the counter shows, or why the card has none."""
    counted: Answer[int] = ask(nvml, "nvmlDeviceGetTotalEnergyConsumption", of=(handle,))
    return counted.map(lambda millijoules: millijoules / 1000)
