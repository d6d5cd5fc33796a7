"""How long race rounds take: what fits into the rest of the time budget.

The time of a launch is a sum over its processes and configurations, in units of the start of one
process. The unit is learned from finished rounds, separately for first launches, which also compile
and check accuracy. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchyard.tune.model import Contender, Stage

SHARED: Final = 0.3
"""Units of a configuration in the process of another one."""
COMPILED_FIRST: Final = 2.0
COMPILED_LATER: Final = 0.5
LONG_FIRST: Final = 12.0
"""Additional units of a compiled configuration in a first and in a later launch, and of one with long
preparation in a first launch."""
LATER_SHARE: Final = 0.7
"""A later launch relative to the first, before one was observed."""
START_FACTOR: Final = 1.5
START_S: Final = 1.0
"""First unit from the time in which a process imports torch: import, build, first calls."""
MIN_CONFIRM_LAUNCHES: Final = 3
"""Fewest launches of a confirmation: with three, a gain of a few times their standard deviation shows."""


class RoundTimes:
    """Estimates of round durations, learned from finished rounds."""

    def __init__(self, *, import_s: float | None = None) -> None:
        """`import_s` is how long a process of the target needs to import torch.

        If it is unknown, every round is expected to fit until one was measured.
        """
        self._guess_s = 0.0 if import_s is None else START_FACTOR * import_s + START_S
        self._seen: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        self._alone: dict[tuple[str, bool], float] = {}
        """Time of a launch of one configuration beside the default, by name and whether it is the first."""

    def record(
        self,
        stage: Stage,
        against: Contender,
        contenders: Sequence[Contender],
        *,
        launches: int,
        took_s: float,
    ) -> None:
        """Learn from a finished round."""
        first = stage == "glance"
        units = launches * _units([against, *contenders], first=first)
        self._seen[first].append((took_s, units))
        if len(contenders) == 1 and not against.choices:
            self._alone[contenders[0].name, first] = took_s / launches

    def round_s(
        self, stage: Stage, against: Contender, contenders: Sequence[Contender], *, launches: int
    ) -> float:
        """Estimate the duration of a round; later launches of a screening do not compile again."""
        everyone = [against, *contenders]
        # A confirmation has caches of its own: its first launch compiles.
        firsts = 1 if stage in ("glance", "confirm") else 0
        first_s = self._unit_s(first=True) * _units(everyone, first=True)
        later_s = self._unit_s(first=False) * _units(everyone, first=False)
        if len(contenders) == 1 and not against.choices:
            name = contenders[0].name
            if (name, True) in self._alone:
                first_s = self._alone[name, True]
                later_s = LATER_SHARE * first_s
            later_s = self._alone.get((name, False), later_s)
        return firsts * first_s + max(0, launches - firsts) * later_s

    def launches_within(
        self, stage: Stage, against: Contender, contenders: Sequence[Contender], available_s: float
    ) -> int:
        """Return how many launches of a round fit."""
        one_s = self.round_s(stage, against, contenders, launches=1)
        more_s = self.round_s(stage, against, contenders, launches=2) - one_s
        if available_s < one_s:
            return 0
        return 1 + int((available_s - one_s) / max(more_s, 1e-3))

    def minimum_s(self, default: Contender, contender: Contender) -> float:
        """Return the time to screen and confirm one configuration."""
        return self.round_s("glance", default, [contender], launches=1) + self.round_s(
            "confirm", default, [contender], launches=MIN_CONFIRM_LAUNCHES
        )

    def _unit_s(self, *, first: bool) -> float:
        took_s = sum(seconds for seconds, _ in self._seen[first])
        units = sum(count for _, count in self._seen[first])
        if units:
            return max(1e-3, took_s / units)
        if first:
            return self._guess_s
        return LATER_SHARE * self._unit_s(first=True)


def _units(contenders: Sequence[Contender], *, first: bool) -> float:
    processes = {
        tuple(choice for choice in one.choices if choice.sets_process) for one in contenders
    }
    others = len(contenders) - len(processes)
    return (
        len(processes) + SHARED * others + sum(_compiling(one, first=first) for one in contenders)
    )


def _compiling(contender: Contender, *, first: bool) -> float:
    choices = contender.choices
    if first and any(choice.takes_long for choice in choices):
        return LONG_FIRST
    if any(choice.backend for choice in choices):
        return COMPILED_FIRST if first else COMPILED_LATER
    return 0.0
