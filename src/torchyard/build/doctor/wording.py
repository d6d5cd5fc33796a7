"""Findings as plain text, worst first. Decides only on words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchyard.core.doctor_finding import SEVERITIES, DoctorFinding, Severity

__all__ = ["findings_text", "verdict_text"]

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
