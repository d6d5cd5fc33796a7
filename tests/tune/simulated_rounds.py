"""Simulated race rounds: launches drawn around speedups given by the test."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torchyard.core.study import Target, Variant, Workload
from torchyard.tune.model import Choice, Contender, Race, RaceRound, Space, Stage
from torchyard.tune.race_rounds import RoundOutcome, RoundResult

Truth = Callable[[Contender], float]
"""Log speedup over the default."""


@dataclass
class SimulatedRounds:
    """Race rounds that take a second for each launch and configuration."""

    truth: Truth
    chance: random.Random
    launch_sd: float = 0.01
    failing: frozenset[str] = frozenset()
    elapsed_s: float = 0.0
    asked: list[tuple[Stage, str, tuple[str, ...]]] = field(default_factory=list)

    def run(
        self,
        stage: Stage,
        against: Contender,
        contenders: Sequence[Contender],
        *,
        launches: int,
        limit_s: float = math.inf,
    ) -> RoundResult:
        """Draw; launches that do not fit into the limit are missing."""
        names = tuple(one.name for one in contenders)
        self.asked.append((stage, against.name, names))
        fitting = min(launches, int(limit_s / (len(names) + 1))) if limit_s < math.inf else launches
        stopped, launches = fitting < launches, fitting
        took_s = limit_s if stopped else float(launches * (len(names) + 1))
        self.elapsed_s += took_s
        outcomes = [
            RoundOutcome(contender=one, failure="crashed (build): it always does")
            if one.name in self.failing
            else RoundOutcome(
                contender=one,
                effects=tuple(
                    self.chance.gauss(self.truth(one) - self.truth(against), self.launch_sd)
                    for _ in range(launches)
                ),
            )
            for one in contenders
        ]
        race_round = RaceRound(
            number=len(self.asked) - 1,
            stage=stage,
            against=against.name,
            contenders=names,
            run="",
            ended_s=self.elapsed_s,
            took_s=took_s,
            stopped=stopped,
        )
        return RoundResult(race_round=race_round, outcomes=tuple(outcomes), against_ns=1e6)


def race_of(dimensions: Mapping[str, Sequence[str]], *, budget_s: float = 600.0) -> Race:
    """A race of choices that set a variable each."""
    choices = tuple(
        Choice(dimension=dimension, name=name, variables=((name.upper(), "1"),))
        for dimension, names in dimensions.items()
        for name in names
    )
    default = Variant(name="default", target=Target(name="here", python=sys.executable))
    return Race(
        workload=Workload(suite="kernels", name="matmul"),
        default=default,
        space=Space(name="simulated", choices=choices),
        alpha=0.05,
        budget_s=budget_s,
    )
