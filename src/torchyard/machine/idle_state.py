"""Idle states of processors (C-states): which there are and how long each takes to wake up from."""

from __future__ import annotations

from dataclasses import dataclass

from torchyard.core.machine import Wish
from torchyard.machine.clock_policy import CPU
from torchyard.machine.file_tree import FileTree

__all__ = ["IdleState", "allowed_latency_us", "idle_states"]


@dataclass(frozen=True, kw_only=True)
class IdleState:
    """One state of one processor."""

    folder: str
    name: str
    latency_us: int

    @property
    def polls(self) -> bool:
        """Whether the processor does not rest at all, but spins."""
        return self.name == "POLL"


def idle_states(files: FileTree) -> tuple[IdleState, ...]:
    """Those of every processor; nothing without an idle driver."""
    found: list[IdleState] = []
    for path in files.paths(f"{CPU}/cpu[0-9]*/cpuidle/state[0-9]*"):
        latency_us = files.read(f"{path}/latency").number
        if latency_us is not None:
            name = files.read(f"{path}/name").value or ""
            found.append(IdleState(folder=path, name=name, latency_us=latency_us))
    return tuple(found)


def allowed_latency_us(states: tuple[IdleState, ...], wish: Wish) -> int:
    """The wished latency, but enough for the lightest sleep; 0 is taken at its word.

    The lightest sleep (C1) takes 1 us on AMD and 2 us on many Intel servers. A limit of 1 us there
    would not mean C1 but polling, which makes heat, and on a core with two threads takes from the
    other one.
    """
    if wish.latency_us == 0:
        return 0
    lightest: dict[str, int] = {}
    for state in states:
        if not state.polls:
            processor = state.folder.rsplit("/cpuidle/", 1)[0]
            lightest[processor] = min(state.latency_us, lightest.get(processor, state.latency_us))
    return max(wish.latency_us, *lightest.values(), 0)
