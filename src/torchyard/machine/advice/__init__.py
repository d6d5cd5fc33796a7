"""What makes numbers worse on this machine, and how to mend it: ranked, with the evidence.

Each module beside this one advises on one subject; `ADVISERS` lists them. Adding one: a module with
`advise(machine, activity) -> Iterator[Advice]`, and a line here. Advisers read only, and judge with
the readers of `facts`; what a knob could write is asked of the knobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from torchyard.core.machine import EFFECTS, Advice
from torchyard.machine.activity import Activity
from torchyard.machine.advice import disturbances, gpus, limits, settings, surroundings
from torchyard.machine.knob import Machine

__all__ = ["ADVISERS", "advise"]

ADVISERS: Final[tuple[Callable[[Machine, Activity], Iterator[Advice]], ...]] = (
    disturbances.advise,
    limits.advise,
    settings.advise,
    surroundings.advise,
    gpus.advise,
)


def advise(machine: Machine, activity: Activity) -> tuple[Advice, ...]:
    """Everything that can be said: what spoils numbers now first, then by effect."""
    found = [advice for adviser in ADVISERS for advice in adviser(machine, activity)]
    return tuple(sorted(found, key=lambda each: (not each.unfit, EFFECTS.index(each.effect))))
