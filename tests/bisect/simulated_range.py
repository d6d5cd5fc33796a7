"""A simulated range of revisions, searched by the code of `torchyard bisect`."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torchyard.bisect.model import Outcome, Revision, RevisionFailed, Round, State
from torchyard.bisect.search import Search, search_budget
from torchyard.core.block import Block, GuardReading
from torchyard.errors import NothingToDo, Untrustworthy

RUN_S = 1.0


@dataclass(kw_only=True)
class SimulatedRange:
    """Revisions whose log times are known, with noise of each run and of each round."""

    levels: Sequence[float]
    seed: int
    noise_sd: float = 0.01
    round_sd: float = 0.0
    slow_share: float = 0.0
    """Share of runs that something else on the machine slows down by 50 %."""
    broken: frozenset[int] = frozenset()
    runs: int = 0
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.revisions = [
            Revision(commit=f"{index:040x}", subject=f"change {index}")
            for index in range(len(self.levels))
        ]

    def log_time(self, index: int) -> float:
        self.runs += 1
        slow = 0.4 if self.chance.random() < self.slow_share else 0.0
        return self.levels[index] + self.chance.gauss(0.0, self.noise_sd) + slow

    def measure(self, revisions: Sequence[Revision], number: int) -> Round:
        common = self.chance.gauss(0.0, self.round_sd)
        blocks = []
        for position, one in enumerate(revisions):
            index = int(one.commit, 16)
            if index in self.broken:
                raise RevisionFailed(one.commit, "exit code 1")
            time_ns = RUN_S * 1e9 * math.exp(common + self.log_time(index))
            blocks.append(
                Block(
                    launch=number,
                    round=0,
                    position=position,
                    variant=one.commit,
                    seat=0,
                    inner=1,
                    samples_ns=(time_ns,),
                    started_ns=0,
                    wall_ns=round(time_ns),
                    guard=GuardReading(),
                    whole_process=True,
                )
            )
        return Round(blocks=tuple(blocks), took_s=RUN_S * len(blocks))

    def search(
        self,
        *,
        time_s: float = 600.0,
        state: State | None = None,
        listener: Callable[..., None] = lambda *_: None,
    ) -> Outcome:
        state = State() if state is None else state
        return Search(
            self.revisions,
            state,
            measure=self.measure,
            record=state.add,
            budget=search_budget(time_s=time_s, margin=0.01),
            listener=listener,
        ).run()


def step(change: int, size: float, count: int = 65) -> list[float]:
    """Return levels of a range in which one revision changes the time."""
    return [math.log1p(size) if index >= change else 0.0 for index in range(count)]


def named(outcome: Outcome) -> list[int]:
    return [int(one.commit, 16) for one in outcome.candidates]


def endings(
    size: float,
    *,
    count: int,
    time_s: float = 600.0,
    round_sd: float = 0.0,
    slow_share: float = 0.0,
) -> Counter[str]:
    """Search ranges of 64 changes with the change at a random place; count the results."""
    results: Counter[str] = Counter()
    for seed in range(count):
        change = random.Random(f"place/{seed}").randint(1, 64)
        simulated = SimulatedRange(
            levels=step(change, size), seed=seed, round_sd=round_sd, slow_share=slow_share
        )
        try:
            outcome = simulated.search(time_s=time_s)
        except (Untrustworthy, NothingToDo):
            results["no difference"] += 1
            continue
        if outcome.ending == "culprit":
            results["right" if named(outcome) == [change] else "wrong"] += 1
        else:
            results[outcome.ending] += 1
    return results
