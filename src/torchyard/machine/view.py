"""Everything about a machine at one moment: facts, state and ranked advice. Reads only."""

from __future__ import annotations

from torchyard.core.machine import MachineView
from torchyard.machine.activity import WINDOW_S, activity_facts, watch_activity
from torchyard.machine.advice import advise
from torchyard.machine.facts import load, read_sections
from torchyard.machine.knob import Machine

__all__ = ["view_machine"]


def view_machine(machine: Machine, *, window_s: float = WINDOW_S) -> MachineView:
    """Look at the machine; takes the window's time, and none of it for a copy.

    The window comes first: asking compilers for their versions would be seen in it.
    """
    activity = watch_activity(machine, window_s=window_s if machine.files.live else 0.0)
    facts = list(read_sections(machine))
    last = max(
        (n for n, fact in enumerate(facts, start=1) if fact.section == load.SECTION), default=0
    )
    facts[last:last] = activity_facts(activity)
    return MachineView(facts=tuple(facts), advice=advise(machine, activity))
