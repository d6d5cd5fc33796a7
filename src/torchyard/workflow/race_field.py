"""The field of a race: what is known of each contender against the default, and who leaves.

Leaving is decided loosely, since it can only cost speed. Knows nothing of time, of files or of stages
other than the last, whose launches decide nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from torchyard.core.comparison import Accuracy
from torchyard.core.race import Choice, Contender, Stage
from torchyard.stats.racing import Pooled, pooled
from torchyard.workflow.race_heats import Outcome

__all__ = ["HEAT_SIZE", "LOOSE_ALPHA", "Field", "Runner", "glance_heats", "heats_in_order"]

HEAT_SIZE: Final = 5
"""Contenders of a heat: each is a process that lives as long as a launch, so memory sets the limit."""
LOOSE_ALPHA: Final = 0.1
"""Level at which a contender leaves, or a choice is tried together with others."""
NOTHING_TO_WIN: Final = 0.005
"""A contender that is as fast as the default to within this, either way, leaves."""
CLOSE: Final = 0.98
"""A contender whose first launch is slower than this, and whose pairs leave no doubt of that, leaves at
once: launches of one program differ by about one percent, and what helps is not so far off."""


@dataclass
class Runner:
    """What is known of one contender against the default."""

    contender: Contender
    effects: list[float] = field(default_factory=list)
    state: str = "racing"
    why: str = ""
    surely_slower: bool = False
    accuracy: Accuracy | None = None

    @property
    def dimension(self) -> str:
        """Of the only choice of a contender that runs alone."""
        return self.contender.choices[0].dimension

    @property
    def seen_twice(self) -> bool:
        """Whether launches can be compared with each other."""
        return len(self.effects) > 1

    def pooled(self) -> Pooled:
        """All launches so far, at the loose level."""
        return pooled(self.effects, alpha=LOOSE_ALPHA)

    def leave(self, why: str) -> None:
        """Run no more."""
        self.state, self.why = "out", why


class Field:
    """All runners, by the name of their contender."""

    def __init__(self) -> None:
        self._runners: dict[str, Runner] = {}

    def get(self, name: str) -> Runner | None:
        """Who ran under that name."""
        return self._runners.get(name)

    def learn(self, outcome: Outcome, stage: Stage) -> None:
        """What a heat against the default says."""
        name = outcome.contender.name
        runner = self._runners.setdefault(name, Runner(contender=outcome.contender))
        runner.accuracy = outcome.accuracy or runner.accuracy
        runner.surely_slower = outcome.surely_slower
        if outcome.failure:
            runner.state, runner.why = "failed", outcome.failure
        elif outcome.wrong:
            runner.state, runner.why = "wrong", outcome.wrong
        elif stage != "confirm":
            runner.effects.extend(outcome.effects)

    def racing(self) -> list[Runner]:
        """Those left, in the order of their first heat."""
        return [one for one in self._runners.values() if one.state == "racing"]

    def promising(self) -> list[Contender]:
        """Those left, the fastest so far first: the time may not suffice for all."""
        return [one.contender for one in sorted(self.racing(), key=lambda one: -one.pooled().log)]

    def settled(self) -> bool:
        """Whether one contender of each dimension is left, each decided."""
        racing = self.racing()
        dimensions = [one.dimension for one in racing]
        decided = all(one.seen_twice and one.pooled().low > 0.0 for one in racing)
        return decided and len(set(dimensions)) == len(dimensions)

    def undecided(self) -> list[str]:
        """Those left that may be faster than the default or not, the most promising first."""
        maybe = [one for one in self.racing() if not one.seen_twice or one.pooled().low <= 0.0]
        return [one.contender.name for one in sorted(maybe, key=lambda one: -one.pooled().log)]

    def leave_after_glance(self) -> None:
        """Those that showed nothing, or that are plainly slower, leave after one launch."""
        for runner in self.racing():
            if not runner.effects:
                runner.leave("no clean pair in its first launch")
            elif runner.effects[0] < math.log(CLOSE) and runner.surely_slower:
                runner.leave(f"{math.exp(runner.effects[0]):.3f}x in its first launch")

    def eliminate(self) -> None:
        """Those leave that are slower than the default, or than the best of their dimension."""
        racing = [one for one in self.racing() if one.seen_twice]
        best: dict[str, Runner] = {}
        for runner in racing:
            leader = best.get(runner.dimension)
            if leader is None or runner.pooled().low > leader.pooled().low:
                best[runner.dimension] = runner
        for runner in racing:
            found, leader = runner.pooled(), best[runner.dimension]
            if found.high < 0.0:
                runner.leave("slower than the default")
            elif runner is not leader and found.high < leader.pooled().low:
                runner.leave(f"behind {leader.contender.name}")
        for runner in racing:
            found = runner.pooled()
            near = -NOTHING_TO_WIN < found.low and found.high < NOTHING_TO_WIN  # noqa: SIM300
            if runner.state == "racing" and near:
                runner.leave("as fast as the default")

    def leaders(self) -> list[Choice]:
        """The best choice of each dimension that is faster than the default, fastest first."""
        best: dict[str, Runner] = {}
        for runner in self.racing():
            if not runner.seen_twice or runner.pooled().low <= 0.0:
                continue
            leader = best.get(runner.dimension)
            if leader is None or runner.pooled().log > leader.pooled().log:
                best[runner.dimension] = runner
        ordered = sorted(best.values(), key=lambda one: -one.pooled().log)
        return [one.contender.choices[0] for one in ordered]


def glance_heats(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """Heats of about equal size; what takes long has heats of its own, and those come last."""
    long = [one for one in contenders if any(choice.takes_long for choice in one.choices)]
    quick = [one for one in contenders if one not in long]
    count = max(1, -(-len(quick) // HEAT_SIZE))
    heats = [quick[number::count] for number in range(count) if quick[number::count]]
    return heats + [[one] for one in long]


def heats_in_order(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """Heats of about equal size, the first ones first."""
    size = -(-len(contenders) // max(1, -(-len(contenders) // HEAT_SIZE)))
    return [list(contenders[at : at + size]) for at in range(0, len(contenders), size)]
