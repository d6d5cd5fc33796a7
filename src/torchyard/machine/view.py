"""Collect everything about a machine at one moment: facts, current activity and ranked advice.

`ADVISERS` lists the advisers of `advice/`. To add one, write a function with the signature
`(machine, activity) -> Iterator[Advice]` there and add it to the list. Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from torchyard.machine.advice import disturbances, gpu_advice, host_configuration
from torchyard.machine.advice import host_configuration as settings
from torchyard.machine.advice import host_configuration as surroundings
from torchyard.machine.advice.activity import WINDOW_S, Activity, activity_facts, watch_activity
from torchyard.machine.facts import load, read_sections
from torchyard.machine.knob import Machine
from torchyard.machine.model import EFFECTS, Advice, MachineView

ADVISERS: Final[tuple[Callable[[Machine, Activity], Iterator[Advice]], ...]] = (
    disturbances.advise,
    host_configuration.advise_limits,
    settings.advise_settings,
    surroundings.advise_surroundings,
    gpu_advice.advise,
)


def advise(machine: Machine, activity: Activity) -> tuple[Advice, ...]:
    """Everything that can be said: what spoils numbers now first, then by effect."""
    found = [advice for adviser in ADVISERS for advice in adviser(machine, activity)]
    return tuple(sorted(found, key=lambda each: (not each.unfit, EFFECTS.index(each.effect))))


def view_machine(machine: Machine, *, window_s: float = WINDOW_S) -> MachineView:
    """Look at the machine; takes the window's time, and none of it for a copy.

    The window comes first: asking compilers for their versions would be seen in it.
    """
    activity = watch_activity(machine, window_s=window_s if machine.files.live else 0.0)
    facts = list(read_sections(machine))
    last = max(
        (n for n, fact in enumerate(facts, start=1) if fact.section == load.LOAD_SECTION), default=0
    )
    facts[last:last] = activity_facts(activity)
    return MachineView(facts=tuple(facts), advice=advise(machine, activity))
