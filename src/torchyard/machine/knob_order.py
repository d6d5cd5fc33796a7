"""Which knob comes before which, and why: when settings are written, and when they are put back."""

from __future__ import annotations

from graphlib import TopologicalSorter
from typing import Final

__all__ = ["RESTORE_ORDER", "WRITE_ORDER", "in_order"]

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
