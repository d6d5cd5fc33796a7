"""A profile of values as plain text: a sentence, the findings by worth, what was looked at."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from torchyard.core.values import ValueFinding, ValueProfile
from torchyard.reports.values_scope import notes_of_profile, scope_rows
from torchyard.reports.values_wording import (
    bytes_text,
    calls_text,
    certainty_text,
    chain_text,
    clipped,
    detail_text,
    mended_text,
    operator_text,
    ordered,
    place_text,
    state_sentence,
    suggestion_text,
    summary_sentence,
    time_text,
)

__all__ = ["values_text"]

_HEADINGS: Final = ("", "pattern", "count/steps", "bytes/step", "time/step", "certainty")
_RIGHT: Final = frozenset({0, 2, 3, 4})
_INDENT: Final = " " * 4
_NAME_WIDTH: Final = 11


def values_text(profile: ValueProfile, *, width: int = 100, most: int = 40) -> str:
    """The whole report; `most` findings, and how many more there are."""
    lines = _wrapped(summary_sentence(profile), width)
    if state_sentence(profile):
        lines += _wrapped(state_sentence(profile), width)
    findings = ordered(profile)
    if findings:
        lines += ["", *_table(findings[:most], profile, width)]
    if len(findings) > most:
        more = f"{len(findings) - most:,} more findings are worth less than these"
        lines += ["", f"{more}: `torchyard values show --format json` lists all."]
    lines += ["", "What was looked at:"]
    for name, text in scope_rows(profile):
        lines += _wrapped(text, width, first=f"  {name:<{_NAME_WIDTH}} ", rest=" " * 14)
    for note in notes_of_profile(profile):
        lines += _wrapped(note, width, first=f"  {'note':<{_NAME_WIDTH}} ", rest=" " * 14)
    return "\n".join(lines) + "\n"


def _table(findings: Sequence[ValueFinding], profile: ValueProfile, width: int) -> list[str]:
    rows = [_HEADINGS]
    for number, finding in enumerate(findings, start=1):
        rows.append(
            (
                str(number),
                clipped(finding.pattern, 40),
                calls_text(finding),
                bytes_text(finding, profile),
                time_text(finding.worth),
                certainty_text(finding),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [_aligned(rows[0], widths)]
    for finding, row in zip(findings, rows[1:], strict=True):
        lines.append(_aligned(row, widths))
        for text in _sentences(finding):
            lines += _wrapped(text, width, first=_INDENT, rest=_INDENT + "  ")
    return lines


def _sentences(finding: ValueFinding) -> list[str]:
    """Below the row of a finding: where, what exactly, how sure, what to do."""
    said = [f"{operator_text(finding.operator, finding.path)} at {place_text(finding.place)}"]
    if detail_text(finding):
        said.append(detail_text(finding))
    if finding.proof.why:
        said.append(f"{finding.proof.certainty.value}: {clipped(finding.proof.why, 500)}")
    if chain_text(finding.worth):
        said.append(chain_text(finding.worth))
    if mended_text(finding.worth):
        said.append(mended_text(finding.worth))
    if suggestion_text(finding):
        said.append(f"→ {suggestion_text(finding)}")
    return said


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        cell.rjust(size) if column in _RIGHT else cell.ljust(size)
        for column, (cell, size) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def _wrapped(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    return wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
