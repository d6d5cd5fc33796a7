"""The cores that this process may use, and how an environment shares them out among its instances."""

from __future__ import annotations

import os
from typing import Final

from torchyard.core.processor_lists import cpus_of_list, share_out
from torchyard.core.variant import Environment
from torchyard.errors import UsageError

__all__ = ["available_cores", "check_instances", "cores_of"]

MOST_PER_CORE: Final = 4
"""Instances that a core may have: more tell of the scheduler alone, and of the memory when it is full."""


def available_cores() -> int:
    """Cores this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def cores_of(environment: Environment) -> tuple[tuple[int, ...], ...]:
    """The cores of each instance: neighbours, since those of a NUMA node are."""
    ours = cpus_of_list(environment.cores) if environment.cores else ()
    return share_out(ours or tuple(os.sched_getaffinity(0)), environment.instances)


def check_instances(environment: Environment) -> None:
    """Raise UsageError for more processes than these cores could ever run."""
    cores = len({core for part in cores_of(environment) for core in part})
    most = MOST_PER_CORE * cores
    if environment.instances > most:
        raise UsageError(
            f"{environment.instances} instances are too many for {cores} cores",
            why=f"at most {MOST_PER_CORE} for each core are started",
            hint=f"set `instances` of the environment {environment.name!r} to {most} or less",
        )
