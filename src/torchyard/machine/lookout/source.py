"""What a source of disturbances is: something that can say how much happened since it was last asked.

One module per source, each with one class, all listed in `lookout/__init__.py`. A source knows
nothing of time, threads and blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torchyard.machine.file_tree import FileTree

__all__ = ["Disturber", "GrowingTotals", "Scene", "Source"]


class Disturber(NamedTuple):
    """Who or what disturbs: a kind of `kinds.py`, and its name."""

    kind: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where to look."""

    files: FileTree
    cores: tuple[int, ...]
    """Logical processors that blocks run on."""
    everywhere: bool
    """Whether these are all processors there are, so that nobody can be elsewhere."""
    own_pid: int
    """The process whose descendants are measured: they disturb nobody."""


class Source(Protocol):
    """One kind of counters of the kernel."""

    @property
    def name(self) -> str:
        """As in `unavailable: pressure, because ...`."""

    @property
    def unavailable(self) -> str:
        """Why it counts nothing here; empty when it does. Known after the first question."""

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """What was added since the last call: seconds or counts; the first call is the start."""


class GrowingTotals:
    """Turns totals that only grow into what was added; one that fell began anew."""

    def __init__(self) -> None:
        self._before: Mapping[Disturber, float] | None = None

    def added(self, totals: Mapping[Disturber, float]) -> dict[Disturber, float]:
        """The difference to the last call, where there is one."""
        before, self._before = self._before, totals
        if before is None:
            return {}
        added: dict[Disturber, float] = {}
        for disturber, total in totals.items():
            more = total - before.get(disturber, 0.0)
            if more > 0.0:
                added[disturber] = more
        return added
