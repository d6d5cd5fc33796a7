"""Limits on what this process may use: processors, time, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchyard.core.machine import Advice
from torchyard.core.processor_lists import cpu_list
from torchyard.machine.activity import Activity
from torchyard.machine.facts import isolation, memory
from torchyard.machine.facts.reading import or_none
from torchyard.machine.knob import Machine

__all__ = ["advise"]

LITTLE_MEMORY: Final = 0.05
"""Part of all memory; the kernel begins to look for pages to take back around there."""


def advise(machine: Machine, activity: Activity) -> Iterator[Advice]:  # noqa: ARG001
    """What the limits of this process do to a measurement."""
    yield from _quota(machine)
    yield from _unbalanced(machine)
    yield from _little_memory(machine)


def _quota(machine: Machine) -> Iterator[Advice]:
    allowed = len(or_none(isolation.allowed(machine.files)))
    try:
        quota = float(isolation.quota_processors(machine.files).value or "inf")
    except ValueError:  # `all`
        return
    if quota < allowed:
        yield Advice(
            name="quota",
            effect="large",
            what=f"this process may run on {allowed} processors and may use the time of {quota:g}",
            why="with more threads than that the kernel stops all of them until the next period, "
            "usually a tenth of a second",
            mend=f"OMP_NUM_THREADS={max(1, int(quota))}, or give the container whole processors "
            "(docker run --cpuset-cpus)",
        )


def _unbalanced(machine: Machine) -> Iterator[Advice]:
    """Processors of isolcpus: the kernel never moves a thread from one to another."""
    apart = set(isolation.apart(machine.files))
    own = tuple(cpu for cpu in or_none(isolation.allowed(machine.files)) if cpu in apart)
    if len(own) > 1:
        yield Advice(
            name="unbalanced",
            effect="large",
            what=f"this process may use {cpu_list(own)}, where the kernel balances no load",
            why="all threads of a process that is not pinned thread by thread may stay on one of "
            "these processors",
            mend="OMP_PROC_BIND=true OMP_PLACES=threads, or leave them to work of one thread",
        )


def _little_memory(machine: Machine) -> Iterator[Advice]:
    total = memory.amount_kib(machine.files, "MemTotal")
    available = memory.amount_kib(machine.files, "MemAvailable")
    if total and available is not None and available < LITTLE_MEMORY * total:
        yield Advice(
            name="little-memory",
            effect="large",
            what=f"{available / total:.1%} of the memory is available",
            why="a measurement that needs more drives pages out to the disk, its own among them",
            mend="end what uses the memory",
        )
