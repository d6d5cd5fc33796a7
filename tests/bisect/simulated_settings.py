"""Simulated settings, searched by the code of `torchyard bisect --settings`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torchyard.bisect.delta import DeltaSearch, SettingsOutcome
from torchyard.bisect.failures import FAILED, PASSED
from torchyard.bisect.model import Revision, RevisionFailed, Round, State
from torchyard.bisect.search import search_budget
from torchyard.core.block import Block, GuardReading

RUN_S = 1.0


@dataclass(kw_only=True)
class SimulatedSettings:
    """A program whose log time is a function of the settings that have the bad value."""

    count: int
    log_time: Callable[[frozenset[int]], float]
    seed: int
    noise_sd: float = 0.01
    round_sd: float = 0.05
    failures: bool = False
    """`log_time` is then the probability of a failure."""
    unusable: frozenset[frozenset[int]] = frozenset()
    runs: int = 0
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def measure(self, sets: Sequence[Revision], number: int) -> Round:
        common = self.chance.gauss(0.0, self.round_sd)
        blocks = []
        for position, one in enumerate(sets):
            bits = int(one.commit, 16)
            chosen = frozenset(index for index in range(self.count) if bits >> index & 1)
            if chosen in self.unusable:
                raise RevisionFailed(one.commit, "pip install: conflict")
            self.runs += 1
            level = self.log_time(chosen)
            if self.failures:
                value = FAILED if self.chance.random() < level else PASSED
            else:
                value = 1e9 * math.exp(level + common + self.chance.gauss(0.0, self.noise_sd))
            blocks.append(
                Block(
                    launch=number,
                    round=0,
                    position=position,
                    variant=one.commit,
                    seat=0,
                    inner=1,
                    samples_ns=(value,),
                    started_ns=0,
                    wall_ns=10**9,
                    guard=GuardReading(),
                    whole_process=True,
                )
            )
        return Round(blocks=tuple(blocks), took_s=RUN_S * len(blocks))

    def search(
        self,
        *,
        time_s: float = 3000.0,
        state: State | None = None,
        listener: Callable[[str], None] = lambda _: None,
    ) -> SettingsOutcome:
        state = State() if state is None else state
        return DeltaSearch(
            self.count,
            state,
            measure=self.measure,
            record=state.add,
            budget=search_budget(time_s=time_s, margin=0.01),
            listener=listener,
            failures=self.failures,
        ).run()


def together(*indices: int, size: float) -> Callable[[frozenset[int]], float]:
    """Return a log time that changes if all of some settings have the bad value."""
    return lambda chosen: math.log1p(size) if chosen >= set(indices) else 0.0


def named(outcome: SettingsOutcome) -> set[int]:
    return {one.index for one in outcome.parts}
