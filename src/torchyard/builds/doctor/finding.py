"""A finding of the doctor about a machine, and findings as text, worst first. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["blocks", "warns", "notes"]

SEVERITIES: tuple[Severity, ...] = ("blocks", "warns", "notes")
"""Worst first: the build can't work, it may fail or disappoint, it is good to know."""


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    """What is wrong, why it matters, and the command that mends it."""

    check: str
    """Name of the check that found it, such as `memory`."""
    severity: Severity
    what: str
    why: str = ""
    mend: str = ""
    """A command, or a sentence where no single command does it."""
    detail: tuple[str, ...] = ()
    """Further lines for people who want to see the evidence."""


_LABELS: Final[dict[Severity, str]] = {"blocks": "BLOCKS", "warns": "warns", "notes": "note"}


def findings_text(findings: Sequence[DoctorFinding], *, details: bool = True) -> str:
    """Every finding with its reason and its mend, and the verdict at the end."""
    lines: list[str] = []
    for severity in SEVERITIES:
        for finding in findings:
            if finding.severity == severity:
                lines += _lines(finding, details=details)
    return "\n".join((*lines, verdict_text(findings), ""))


def verdict_text(findings: Sequence[DoctorFinding]) -> str:
    """One sentence: whether the build can work."""
    counts = {severity: sum(f.severity == severity for f in findings) for severity in SEVERITIES}
    if counts["blocks"]:
        return f"The build can't work: {_things(counts['blocks'], 'thing')} to mend first."
    if counts["warns"]:
        return f"The build can work; {_things(counts['warns'], 'warning')}."
    return "The build can work."


def _lines(finding: DoctorFinding, *, details: bool) -> list[str]:
    lines = [f"{_LABELS[finding.severity]}  {finding.check}: {finding.what}"]
    if finding.why:
        lines.append(f"    why: {finding.why}")
    if finding.mend:
        lines.append(f"    mend: {finding.mend}")
    if details:
        lines += [f"      {line}" for line in finding.detail]
    return lines


def _things(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
