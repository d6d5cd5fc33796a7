"""Simulated settings, searched by the code of `torchyard bisect --settings`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.bisect.simulated_range import SimulatedPrograms
from torchyard.bisect.delta import DeltaSearch, SettingsOutcome
from torchyard.bisect.ends import Listener
from torchyard.bisect.failures import FAILED, PASSED
from torchyard.bisect.model import RevisionFailed, State


@dataclass(kw_only=True)
class SimulatedSettings(SimulatedPrograms):
    """A program whose log time is a function of the settings that have the bad value.

    With `failures`, `log_time` is the probability of a failure.
    """

    count: int
    log_time: Callable[[frozenset[int]], float]
    round_sd: float = 0.05
    unusable: frozenset[frozenset[int]] = frozenset()

    def value(self, name: str) -> float:
        bits = int(name, 16)
        chosen = frozenset(index for index in range(self.count) if bits >> index & 1)
        if chosen in self.unusable:
            raise RevisionFailed(name, "pip install: conflict")
        self.runs += 1
        level = self.log_time(chosen)
        if self.failures:
            return FAILED if self.chance.random() < level else PASSED
        return 1e9 * math.exp(level + self.chance.gauss(0.0, self.noise_sd))

    def search(
        self,
        *,
        time_s: float = 3000.0,
        state: State | None = None,
        listener: Listener = lambda *_: None,
    ) -> SettingsOutcome:
        return DeltaSearch(self.count, self.experiment(time_s, state, listener)).run()


def together(*indices: int, size: float) -> Callable[[frozenset[int]], float]:
    """Return a log time that changes if all of some settings have the bad value."""
    return lambda chosen: math.log1p(size) if chosen >= set(indices) else 0.0


def named(outcome: SettingsOutcome) -> set[int]:
    return {one.index for one in outcome.parts}
