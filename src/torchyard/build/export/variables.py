"""Which variables steps share, and how each differs from that. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchyard.core.build_plan import Command, Step, Variables

__all__ = ["Difference", "distinct_differences", "own_variables", "shared_by_most"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How a step's variables differ from those that most steps have."""

    more: Variables
    """Added, or with another value."""
    without: tuple[str, ...]
    """Names that this step does not have."""

    @staticmethod
    def of(step: Step, shared: Variables) -> Difference:
        """Of the step's variables from the shared ones."""
        own = dict(step.variables)
        usual = dict(shared)
        return Difference(
            more=tuple(pair for pair in own.items() if usual.get(pair[0]) != pair[1]),
            without=tuple(name for name in usual if name not in own),
        )

    def beyond(self, other: Difference) -> Variables | None:
        """What this one has more than the other; None where it does not hold all of the other."""
        if self.without != other.without or not set(other.more) <= set(self.more):
            return None
        return tuple(pair for pair in self.more if pair not in other.more)


def shared_by_most(steps: Sequence[Step]) -> Variables:
    """Variables that more than half of the steps have with the same value, in the first's order."""
    pairs = Counter(pair for step in steps for pair in dict(step.variables).items())
    return tuple(pair for pair, count in pairs.items() if 2 * count > len(steps))


def distinct_differences(steps: Sequence[Step]) -> dict[Difference, tuple[str, ...]]:
    """Every difference from the shared variables -> names of the steps that have it."""
    shared = shared_by_most(steps)
    found: dict[Difference, tuple[str, ...]] = {}
    for step in steps:
        difference = Difference.of(step, shared)
        if difference.more or difference.without:
            found[difference] = (*found.get(difference, ()), step.name)
    return found


def own_variables(step: Step, command: Command) -> Variables:
    """Variables of a command that its step does not have already."""
    usual = dict(step.variables)
    return tuple(pair for pair in command.variables if usual.get(pair[0]) != pair[1])
