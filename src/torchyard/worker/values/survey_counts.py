"""What surveyed steps add to findings: whether each still holds, and how often.

A finding is made while looking closely. In a surveyed step its place is seen as rows, which show
whether what it rests on is still there; where rows cannot show it (an initialisation that is dead by
the order of operators), the same operators in the same order count as the same again.
"""

from typing import Dict, List

from torchyard.worker.values.findings import Finding, Findings, Sight
from torchyard.worker.values.step_rows import EQUAL, FREQUENT, NARROW, REPEATED, SINGLE, Surveyed

_ANY = EQUAL | FREQUENT | NARROW | REPEATED | SINGLE
SHOWN_BY: Dict[str, int] = {
    "redundant write": EQUAL | REPEATED,
    "duplicate": EQUAL,
    "single zero": SINGLE | FREQUENT | NARROW,  # zeros of both signs are narrow only
    "single value": SINGLE,
    "frequent values": FREQUENT | SINGLE,
    "heavy type": NARROW | FREQUENT,
    "guard that never fires": EQUAL | REPEATED,
    "unchanged across steps": REPEATED,
    "sparse gradient": FREQUENT | SINGLE,
}
"""By pattern; those that are not here have nothing that a row shows."""
NEVER_AGAIN = ("guard that never fires", "unchanged across steps")
"""Patterns that one exception ends."""


def count_surveyed(findings: Findings, surveyed: Surveyed) -> None:
    """Add a surveyed step."""
    if surveyed.closely:
        return
    watched: Dict[Sight, List[Finding]] = {}
    for finding in findings.seen():
        for sight in finding.hits:
            watched.setdefault(sight, []).append(finding)
    if not watched:
        return
    for sight, shown in zip(surveyed.sights, surveyed.shows):
        for finding in watched.get(sight, ()):
            needed = SHOWN_BY.get(finding.pattern)
            holds = surveyed.regular if needed is None else bool(shown & needed)
            if holds:
                findings.again(finding, sight, surveyed.step)
            else:
                findings.missed(sight)
                if finding.pattern in NEVER_AGAIN:
                    findings.drop(finding)
