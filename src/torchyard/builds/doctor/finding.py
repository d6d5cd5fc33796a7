"""A finding of the doctor about a machine, and findings as text, worst first. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.records import renamed
from torchyard.core.units import format_count

Severity = Literal["blocks", "warns", "notes"]

SEVERITIES: tuple[Severity, ...] = ("blocks", "warns", "notes")
"""Worst first: the build cannot succeed; it may fail or be degraded; for information."""


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    """A problem, why it matters, and the suggested fix."""

    check: str = ""
    """Name of the check that found it, such as `memory`; filled in by `examine`."""
    severity: Severity
    what: str
    why: str = ""
    fix: str = renamed("", formerly="mend")
    """A command, or a sentence."""
    detail: tuple[str, ...] = ()
    """Further lines with the evidence."""


def blocker(
    what: str, *, why: str = "", fix: str = "", detail: tuple[str, ...] = ()
) -> DoctorFinding:
    """Return a finding because of which the build cannot succeed."""
    return DoctorFinding(severity="blocks", what=what, why=why, fix=fix, detail=detail)


def warning(
    what: str, *, why: str = "", fix: str = "", detail: tuple[str, ...] = ()
) -> DoctorFinding:
    """Return a finding because of which the build may fail or its result may be degraded."""
    return DoctorFinding(severity="warns", what=what, why=why, fix=fix, detail=detail)


def note(what: str, *, why: str = "", fix: str = "", detail: tuple[str, ...] = ()) -> DoctorFinding:
    """Return a finding for information."""
    return DoctorFinding(severity="notes", what=what, why=why, fix=fix, detail=detail)


_LABELS: Final[dict[Severity, str]] = {"blocks": "BLOCKS", "warns": "warning", "notes": "note"}


def findings_text(findings: Sequence[DoctorFinding]) -> str:
    """Return every finding with its reason and fix, and the verdict at the end."""
    lines: list[str] = []
    for severity in SEVERITIES:
        for finding in findings:
            if finding.severity == severity:
                lines += _lines(finding)
    return "\n".join((*lines, verdict_text(findings), ""))


def verdict_text(findings: Sequence[DoctorFinding]) -> str:
    """Return one sentence: whether the build can succeed."""
    counts = {severity: sum(f.severity == severity for f in findings) for severity in SEVERITIES}
    if counts["blocks"]:
        return (
            f"The build cannot succeed: {format_count(counts['blocks'], 'problem')} to fix first."
        )
    if counts["warns"]:
        return f"The build can succeed; {format_count(counts['warns'], 'warning')}."
    return "The build can succeed."


def _lines(finding: DoctorFinding) -> list[str]:
    lines = [f"{_LABELS[finding.severity]}  {finding.check}: {finding.what}"]
    if finding.why:
        lines.append(f"    why: {finding.why}")
    if finding.fix:
        lines.append(f"    fix: {finding.fix}")
    return [*lines, *(f"      {line}" for line in finding.detail)]
