"""An audit as plain text: verdict, numbers, culprits, and what changed since another one."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from torchyard.core.audit import Audit, AuditChange
from torchyard.reports.audit_wording import (
    change_rows,
    disturbance_text,
    number_rows,
    verdict_sentence,
)
from torchyard.reports.plain_text import one_line

__all__ = ["audit_text", "change_text"]

_NAME_WIDTH: Final = 18


def audit_text(audit: Audit, *, width: int = 100) -> str:
    """The whole report."""
    lines = [verdict_sentence(audit)]
    if audit.interrupted:
        lines.append(f"Interrupted: this is what {audit.measured_s:.0f} s showed.")
    lines.append("")
    for name, text in number_rows(audit):
        lines += _row(name, text, width)
    lines.append("")
    if audit.disturbances:
        heading = "What disturbed it (seen at the same time; not proven to be the cause):"
        lines += _wrapped(heading, width, first="", rest="")
        said: set[str] = set()
        for disturbance in audit.disturbances:
            lines += _wrapped(disturbance_text(disturbance), width, first="  - ", rest="    ")
            if disturbance.advice and disturbance.advice not in said:
                lines += _wrapped(disturbance.advice, width, first="      ", rest="      ")
            said.add(disturbance.advice)
    else:
        lines.append("Nothing was seen that disturbed it.")
    for name, text in audit.watched:
        if text.startswith("unavailable"):
            lines += _wrapped(f"not watched: {name}, {text}", width, first="", rest="  ")
    for note in audit.notes:
        lines += _wrapped(note, width, first="note: ", rest="  ")
    if audit.assumptions:
        lines += ["", "What can be resolved assumes:"]
        for assumption in audit.assumptions:
            lines += _wrapped(assumption, width, first="  - ", rest="    ")
    return "\n".join(lines) + "\n"


def change_text(
    changes: tuple[AuditChange, ...],
    *,
    title: str,
    names: tuple[str, str] = ("before", "after"),
    differences: Sequence[str] = (),
    width: int = 100,
) -> str:
    """Two audits as a small table."""
    headings = ("spread", *names, f"{names[1]} / {names[0]}", "")
    rows = [headings, *change_rows(changes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    lines = [one_line(title)]
    lines += [
        (
            "  " + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    if differences:
        lines.append("  not the same otherwise:")
        for difference in differences:
            lines += _wrapped(difference, width, first="  - ", rest="    ")
    return "\n".join(lines) + "\n"


def _row(name: str, text: str, width: int) -> list[str]:
    return _wrapped(text, width, first=f"{name:<{_NAME_WIDTH}} ", rest=" " * (_NAME_WIDTH + 1))


def _wrapped(text: str, width: int, *, first: str, rest: str) -> list[str]:
    return wrap(
        one_line(text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
