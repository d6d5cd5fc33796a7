"""One thing the doctor says about a machine before a build. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["SEVERITIES", "DoctorFinding", "Severity"]

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
