"""The cores that this process may use, and how an environment shares them out among its instances."""

from __future__ import annotations

import os

from torchyard.core.processor_lists import cpus_of_list, share_out
from torchyard.core.variant import Environment

__all__ = ["available_cores", "cores_of"]


def available_cores() -> int:
    """Cores this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def cores_of(environment: Environment) -> tuple[tuple[int, ...], ...]:
    """The cores of each instance: neighbours, since those of a NUMA node are."""
    ours = cpus_of_list(environment.cores) if environment.cores else ()
    return share_out(ours or tuple(os.sched_getaffinity(0)), environment.instances)
