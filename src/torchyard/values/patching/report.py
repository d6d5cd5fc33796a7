"""Patches as text for the terminal."""

from __future__ import annotations

import shlex
from typing import Final

from torchyard.core.units import format_percent
from torchyard.presentation.safe_text import wrapped
from torchyard.values.patching.model import FixReport, Gain, Proposal, Verification

_INDENT: Final = "    "
_NAMED: Final = 20
_WIDTH: Final = 100


def fix_text(report: FixReport, *, folder: str) -> str:
    """Return patches with their evidence, then the findings without a patch and the reasons."""
    proposed = report.proposed
    others = [one for one in report.proposals if not one.proposed]
    findings = "finding" if len(report.proposals) == 1 else "findings"
    start = (
        "1 patch proposed for " if len(proposed) == 1 else f"{len(proposed)} patches proposed for "
    )
    lines = [f"{start}{len(report.proposals)} {findings}."]
    for proposal in proposed:
        lines += ["", *_entry(proposal, proposal.text), *proposal.diff.splitlines()]
        for text in (verification_text(proposal.verification), gain_text(proposal.gain)):
            lines += wrapped(text, _WIDTH, first=_INDENT, rest=_INDENT + "  ")
    if len(proposed) > 1:
        lines += ["", "All patches together:"]
        for text in (verification_text(report.together), gain_text(report.gain)):
            lines += wrapped(text, _WIDTH, first=_INDENT, rest=_INDENT + "  ")
    if others:
        lines += ["", "Not proposed:"]
        for proposal in others[:_NAMED]:
            lines += _entry(proposal, proposal.why_not or "not verified")
        if len(others) > _NAMED:
            lines.append(f"{_INDENT}{len(others) - _NAMED} more: --json lists all")
    if report.interrupted:
        lines += ["", "Interrupted: the patches above are complete, others were not verified."]
    if report.applied:
        lines += [
            "",
            *(
                f"changed {one.file}; to undo: {shlex.join(['cp', one.backup, one.file])}"
                for one in report.applied
            ),
        ]
    elif proposed and report.together.passed:
        lines += [
            "",
            f"No file was changed. The diff is {folder}/fixes.diff; --apply changes the files.",
        ]
    return "\n".join(lines) + "\n"


def verification_text(verification: Verification) -> str:
    """Return how results were compared."""
    if not verification.passed:
        return f"not verified: {verification.why}"
    inputs = (
        f"{verification.runs} seeds"
        if verification.seeds_matter
        else f"{verification.runs} runs, which do not depend on random numbers"
    )
    equal = f"{verification.rounded} with " if verification.rounded else "equal bit for bit with "
    return (
        f"results: {equal}{inputs}, uninitialized memory filled with garbage "
        f"({', '.join(verification.compared)})"
    )


def gain_text(gain: Gain) -> str:
    """Return the measured saving."""
    if gain.share is None:
        return f"saving not measured: {gain.why or 'no timed runs'}"
    if gain.interval is None:
        return f"saving not measured: {gain.pairs} pairs of runs give no interval"
    low, high = gain.interval.low, gain.interval.high
    interval = f"[{format_percent(low)}, {format_percent(high)}]"
    verb = "saves" if low > 0 else "no measurable saving:"
    return f"measured: {verb} {format_percent(gain.share)} {interval} of {gain.clock} ({gain.pairs} pairs of runs)"


def _entry(proposal: Proposal, text: str) -> list[str]:
    name = proposal.operator.removeprefix("aten::")
    title = f"{proposal.pattern}, {name} at {proposal.file}:{proposal.line}"
    first, rest = f"{proposal.finding:>3} ", _INDENT + "  "
    return wrapped(f"{title}: {text}", _WIDTH, first=first, rest=rest)
