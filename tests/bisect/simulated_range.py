"""Simulated programs, and a range of their revisions, searched by the code of `torchyard bisect`."""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.sample_records import made_block
from torchyard.bisect.ends import Experiment, Listener
from torchyard.bisect.model import Outcome, Revision, RevisionFailed, Round, State
from torchyard.bisect.search import Search, search_budget
from torchyard.errors import NothingToDo, Untrustworthy

RUN_S = 1.0


@dataclass(kw_only=True)
class SimulatedPrograms:
    """Programs that are named by a number, with noise of each run and of each round."""

    seed: int
    noise_sd: float = 0.01
    round_sd: float = 0.0
    failures: bool = False
    margin: float = 0.01
    unlikely: frozenset[str] = frozenset()
    runs: int = 0
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    @abstractmethod
    def value(self, name: str) -> float:
        """Run a program once: return its time without the effect of the round, or whether it fails."""

    def measure(self, revisions: Sequence[Revision], number: int) -> Round:
        common = 0.0 if self.failures else self.chance.gauss(0.0, self.round_sd)
        values = [self.value(one.commit) * math.exp(common) for one in revisions]
        blocks = tuple(
            made_block(
                one.commit,
                launch=number,
                position=position,
                samples_ns=(value,),
                wall_ns=round(RUN_S * 1e9),
                whole_process=True,
            )
            for position, (one, value) in enumerate(zip(revisions, values, strict=True))
        )
        signatures = {one.commit: self.signature(one.commit) for one in revisions}
        return Round(blocks=blocks, took_s=RUN_S * len(blocks), signatures=signatures)

    def signature(self, name: str) -> dict[str, str]:  # noqa: ARG002  # for subclasses
        """Return the signature of a program; empty if there is none."""
        return {}

    def experiment(
        self, time_s: float, state: State | None = None, listener: Listener = lambda *_: None
    ) -> Experiment:
        state = State() if state is None else state
        return Experiment(
            state=state,
            measure=self.measure,
            record=state.add,
            budget=search_budget(time_s=time_s, margin=self.margin),
            listener=listener,
            failures=self.failures,
            unlikely=self.unlikely,
        )


@dataclass(kw_only=True)
class SimulatedRange(SimulatedPrograms):
    """Revisions whose log times are known."""

    levels: Sequence[float]
    slow_share: float = 0.0
    """Share of runs that something else on the machine slows down by 50 %."""
    broken: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.revisions = [
            Revision(commit=f"{index:040x}", subject=f"change {index}")
            for index in range(len(self.levels))
        ]

    def log_time(self, index: int) -> float:
        self.runs += 1
        slow = 0.4 if self.chance.random() < self.slow_share else 0.0
        return self.levels[index] + self.chance.gauss(0.0, self.noise_sd) + slow

    def value(self, name: str) -> float:
        index = int(name, 16)
        if index in self.broken:
            raise RevisionFailed(name, "exit code 1")
        return RUN_S * 1e9 * math.exp(self.log_time(index))

    def search(
        self,
        *,
        time_s: float = 600.0,
        state: State | None = None,
        listener: Listener = lambda *_: None,
    ) -> Outcome:
        return Search(self.revisions, self.experiment(time_s, state, listener)).run()


@dataclass(kw_only=True)
class QuietEnds(SimulatedRange):
    """Good and bad are ten times less noisy than the revisions between them."""

    def log_time(self, index: int) -> float:
        self.runs += 1
        last = len(self.levels) - 1
        return self.levels[index] + self.chance.gauss(0.0, 0.003 if index in {0, last} else 0.03)


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
    kind: type[SimulatedRange] = SimulatedRange,
) -> Counter[str]:
    """Search ranges of 64 changes with the change at a random place; count the results."""
    results: Counter[str] = Counter()
    for seed in range(count):
        change = random.Random(f"place/{seed}").randint(1, 64)
        simulated = kind(
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
