"""A finding of the doctor about a machine, and findings as text, worst first. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.records import renamed

Severity = Literal["blocks", "warns", "notes"]

SEVERITIES: tuple[Severity, ...] = ("blocks", "warns", "notes")
"""Worst first: the build cannot succeed; it may fail or be degraded; for information."""


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    """A problem, why it matters, and the suggested fix."""

    check: str
    """Name of the check that found it, such as `memory`."""
    severity: Severity
    what: str
    why: str = ""
    fix: str = renamed("", formerly="mend")
    """A command, or a sentence."""
    detail: tuple[str, ...] = ()
    """Further lines with the evidence."""


_LABELS: Final[dict[Severity, str]] = {"blocks": "BLOCKS", "warns": "warning", "notes": "note"}


def findings_text(findings: Sequence[DoctorFinding], *, details: bool = True) -> str:
    """Return every finding with its reason and fix, and the verdict at the end."""
    lines: list[str] = []
    for severity in SEVERITIES:
        for finding in findings:
            if finding.severity == severity:
                lines += _lines(finding, details=details)
    return "\n".join((*lines, verdict_text(findings), ""))


def verdict_text(findings: Sequence[DoctorFinding]) -> str:
    """Return one sentence: whether the build can succeed."""
    counts = {severity: sum(f.severity == severity for f in findings) for severity in SEVERITIES}
    if counts["blocks"]:
        return f"The build cannot succeed: {_counted(counts['blocks'], 'problem')} to fix first."
    if counts["warns"]:
        return f"The build can succeed; {_counted(counts['warns'], 'warning')}."
    return "The build can succeed."


def _lines(finding: DoctorFinding, *, details: bool) -> list[str]:
    lines = [f"{_LABELS[finding.severity]}  {finding.check}: {finding.what}"]
    if finding.why:
        lines.append(f"    why: {finding.why}")
    if finding.fix:
        lines.append(f"    fix: {finding.fix}")
    if details:
        lines += [f"      {line}" for line in finding.detail]
    return lines


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
