"""Everything about a machine at one moment: facts, current activity and ranked advice.

Advisers say what makes measurements worse on this machine, with the evidence and a suggested fix.
They read only, and judge with the readers of `facts`; what a knob could write is asked of the knobs.
To add one, write a function `(machine, activity) -> Iterator[Advice]` and add it to `ADVISERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from torchyard.machine.advice import gpu_advice, host_configuration
from torchyard.machine.advice.activity import (
    WINDOW_S,
    Activity,
    activity_facts,
    advise_activity,
    observe_activity,
)
from torchyard.machine.facts import load, read_sections
from torchyard.machine.knob import Machine
from torchyard.machine.model import EFFECTS, Advice, MachineView

ADVISERS: Final[tuple[Callable[[Machine, Activity], Iterator[Advice]], ...]] = (
    advise_activity,
    host_configuration.advise_limits,
    host_configuration.advise_settings,
    host_configuration.advise_surroundings,
    gpu_advice.advise,
)


def advise(machine: Machine, activity: Activity) -> tuple[Advice, ...]:
    """Return all advice: what makes the machine unfit first, then by effect."""
    advice = [item for adviser in ADVISERS for item in adviser(machine, activity)]
    return tuple(sorted(advice, key=lambda item: (not item.unfit, EFFECTS.index(item.effect))))


def view_machine(machine: Machine, *, window_s: float = WINDOW_S) -> MachineView:
    """Return facts and advice. Samples the load for `window_s`; a copy of a machine takes no time.

    The load is sampled first, because running compilers for their versions would appear in it.
    """
    activity = observe_activity(machine, window_s=window_s if machine.files.live else 0.0)
    facts = list(read_sections(machine))
    last = max(
        (n for n, fact in enumerate(facts, start=1) if fact.section == load.LOAD_SECTION), default=0
    )
    facts[last:last] = activity_facts(activity)
    return MachineView(facts=tuple(facts), advice=advise(machine, activity))
