"""A profile of values in Markdown, for pull requests and notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchyard.core.values import ValueFinding, ValueProfile
from torchyard.reports.markdown_report import escaped
from torchyard.reports.values_scope import notes_of_profile, scope_rows
from torchyard.reports.values_wording import (
    bytes_text,
    calls_text,
    certainty_text,
    chain_text,
    clipped,
    code_spans,
    detail_text,
    mended_text,
    operator_text,
    ordered,
    place_text,
    state_sentence,
    suggestion_text,
    summary_sentence,
    time_text,
    title_of_program,
)

__all__ = ["values_markdown"]

_HEADINGS: Final = (
    "#",
    "pattern",
    "operator",
    "place",
    "count/steps",
    "bytes/step",
    "time/step",
    "certainty",
)
_RIGHT: Final = (0, 4, 5, 6)


def values_markdown(profile: ValueProfile, *, most: int = 100) -> str:
    """A table that reads well as text too, and below it what to do; `most` findings."""
    lines = [f"## Values of {escaped(title_of_program(profile))}", ""]
    if state_sentence(profile):
        lines += [f"**{escaped(state_sentence(profile))}**", ""]
    lines += [escaped(summary_sentence(profile)), ""]
    findings = ordered(profile)
    if findings:
        lines += [*_table(findings[:most], profile), ""]
        for number, finding in enumerate(findings[:most], start=1):
            lines += [f"{number}. {' '.join(_sentences(finding))}"]
        lines.append("")
    if len(findings) > most:
        lines += [f"{len(findings) - most:,} more findings are worth less than these.", ""]
    lines += ["<details><summary>What was looked at</summary>", ""]
    lines += [f"- {name}: {escaped(text)}" for name, text in scope_rows(profile)]
    lines += [f"- note: {escaped(note)}" for note in notes_of_profile(profile)]
    return "\n".join([*lines, "", "</details>"]) + "\n"


def _table(findings: list[ValueFinding], profile: ValueProfile) -> Iterator[str]:
    yield "| " + " | ".join(_HEADINGS) + " |"
    rule = ("---:" if column in _RIGHT else "---" for column in range(len(_HEADINGS)))
    yield "| " + " | ".join(rule) + " |"
    for number, finding in enumerate(findings, start=1):
        cells = (
            str(number),
            finding.pattern,
            operator_text(finding.operator, finding.path),
            place_text(finding.place),
            calls_text(finding),
            bytes_text(finding, profile),
            time_text(finding.worth),
            certainty_text(finding),
        )
        yield "| " + " | ".join(escaped(clipped(cell)) for cell in cells) + " |"


def _sentences(finding: ValueFinding) -> Iterator[str]:
    yield f"{escaped(detail_text(finding) or clipped(finding.pattern))}."
    if finding.proof.why:
        why = clipped(finding.proof.why, 500)
        yield f"{finding.proof.certainty.value.capitalize()}: {escaped(why)}."
    if chain_text(finding.worth):
        text = chain_text(finding.worth)
        yield f"{escaped(text[0].upper() + text[1:])}."
    if mended_text(finding.worth):
        said = mended_text(finding.worth)
        yield f"{escaped(said[0].upper() + said[1:])}."
    if suggestion_text(finding):
        parts = code_spans(suggestion_text(finding))
        yield "**To do:** " + "".join(
            f"`{part}`" if code else _kept_spaces(part) for code, part in parts
        )


def _kept_spaces(text: str) -> str:
    """Escaped, with the spaces at its ends, which part it from a code span."""
    before, after = text[:1] == " ", text[1:] and text[-1:] == " "
    return f"{' ' if before else ''}{escaped(text)}{' ' if after else ''}"
