"""Advice about GPUs, from a reading taken now. What is advised is said in `machine.gpu.advice`."""

from __future__ import annotations

from collections.abc import Iterator

from torchyard.core.machine import Advice
from torchyard.machine.activity import Activity
from torchyard.machine.gpu import advice as gpu_advice
from torchyard.machine.gpu.reading import read_gpus
from torchyard.machine.knob import Machine

__all__ = ["advise"]


def advise(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """For every GPU that can be asked."""
    yield from gpu_advice.advise(read_gpus(machine))
