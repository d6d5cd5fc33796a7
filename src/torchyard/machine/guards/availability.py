"""Which guards could read, and why the others could not: said once, not with every block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from torchyard.core.block import GuardReading

__all__ = ["guard_states"]

_OF_THE_WORKER: Final = (
    (
        "run-queue wait",
        "run_queue_wait_ns",
        "the kernel shows the worker no /proc/self/task/*/schedstat; switches and CPU time stand in",
    ),
    ("steal", "steal_ns", "/proc/stat shows no stolen time"),
    ("switches", "involuntary_switches", "the worker could not read them"),
    ("major faults", "major_faults", "the worker could not read them"),
    ("frequency probe", "probe_before_ns", "the work is not timed on a core of the processor"),
)
"""Name, field of the reading, and why it is missing where it is."""


def guard_states(
    readings: Iterable[GuardReading], of_the_machine: Mapping[str, str]
) -> dict[str, str]:
    """Each guard by its name, and why it is unavailable: empty when it read something."""
    seen = list(readings)
    states = {
        name: "" if any(getattr(each, field) is not None for each in seen) else because
        for name, field, because in _OF_THE_WORKER
    }
    return states | dict(of_the_machine)
