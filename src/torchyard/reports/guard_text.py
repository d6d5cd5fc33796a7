"""What the guards saw, in words: disturbed blocks of a comparison, and which guards could not read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from torchyard.core.comparison import Comparison, GuardSummary
from torchyard.reports.plain_text import one_line
from torchyard.reports.wording import title_of
from torchyard.results.run_reader import Run

__all__ = ["blocks_text", "disturbed_lines", "guard_rows", "temperature_text", "unread_guards"]

READ = "read"


def blocks_text(guards: GuardSummary) -> str:
    """`12 of 320 blocks dirty: waited for a core 9, core slowed down 3`."""
    text = f"{guards.dirty} of {guards.blocks} block{'s' if guards.blocks != 1 else ''} dirty"
    reasons = ", ".join(f"{one_line(reason)} {count}" for reason, count in guards.reasons)
    return f"{text}: {reasons}" if reasons else text


def temperature_text(guards: GuardSummary) -> str:
    """`41 to 63 °C`; empty when it was not read."""
    if guards.temperature_c is None:
        return ""
    low, high = (f"{degrees:.0f}" for degrees in guards.temperature_c)
    return f"{low} °C" if low == high else f"{low} to {high} °C"


def disturbed_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """One line for each comparison that had dirty blocks."""
    return [
        f"{title_of(comparison)}: {blocks_text(comparison.guards)}"
        for comparison in comparisons
        if comparison.guards.dirty
    ]


def guard_rows(run: Run) -> list[tuple[str, str]]:
    """Each guard, and whether it could read in the launches of this run; none in an old run."""
    states: dict[str, list[str]] = defaultdict(list)
    for launch in run.launches():
        found = launch.get("guards")
        for name, because in found.items() if isinstance(found, dict) else ():
            states[one_line(str(name))].append(one_line(str(because)))
    return [(name, _state_text(reasons)) for name, reasons in states.items()]


def unread_guards(run: Run) -> list[tuple[str, str]]:
    """Guards that read nothing, or not in every launch, with the reason."""
    return [(name, text) for name, text in guard_rows(run) if text != READ]


def _state_text(reasons: Sequence[str]) -> str:
    """From what each launch said: empty where the guard could read."""
    missing = [reason for reason in reasons if reason]
    if not missing:
        return READ
    said = "; ".join(dict.fromkeys(missing))
    if len(missing) == len(reasons):
        return f"unavailable, because {said}"
    return f"unavailable in {len(missing)} of {len(reasons)} launches, because {said}"
