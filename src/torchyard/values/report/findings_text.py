"""A value profile as terminal text and Markdown: summary, findings by saving, scope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torchyard.presentation.safe_text import aligned, escaped, wrapped
from torchyard.presentation.tables import escaped_cells, markdown_table
from torchyard.values.model import ValueFinding, ValueProfile
from torchyard.values.report.descriptions import (
    bytes_text,
    calls_text,
    certainty_text,
    chain_text,
    clipped,
    code_spans,
    detail_text,
    fix_speedup_text,
    measured_text,
    notes_of_profile,
    operator_text,
    ordered,
    place_text,
    scope_rows,
    state_sentence,
    suggestion_text,
    summary_sentence,
    time_text,
    title_of_program,
)

_TEXT_HEADINGS: Final = ("", "pattern", "calls/steps", "bytes/step", "time/step", "certainty")
_TEXT_RIGHT: Final = frozenset({0, 2, 3, 4})
_INDENT: Final = " " * 4
_NAME_WIDTH: Final = 12


def values_text(profile: ValueProfile, *, width: int = 100, most: int = 40) -> str:
    """Return the report with at most `most` findings."""
    lines = wrapped(summary_sentence(profile), width)
    if state_sentence(profile):
        lines += wrapped(state_sentence(profile), width)
    findings = ordered(profile)
    if findings:
        lines += ["", *_text_table(findings[:most], profile, width)]
    if len(findings) > most:
        more = f"{len(findings) - most:,} smaller findings are not shown"
        lines += ["", f"{more}: `torchyard values show --format json` lists all findings."]
    lines += ["", "Scope:"]
    for name, text in scope_rows(profile):
        lines += wrapped(
            text, width, first=f"  {name:<{_NAME_WIDTH}} ", rest=" " * (_NAME_WIDTH + 3)
        )
    for note in notes_of_profile(profile):
        lines += wrapped(
            note, width, first=f"  {'note':<{_NAME_WIDTH}} ", rest=" " * (_NAME_WIDTH + 3)
        )
    return "\n".join(lines) + "\n"


def _text_table(findings: Sequence[ValueFinding], profile: ValueProfile, width: int) -> list[str]:
    rows = [_TEXT_HEADINGS]
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
    heading, *table = aligned(rows, right=_TEXT_RIGHT).split("\n")
    lines = [heading]
    for finding, row in zip(findings, table, strict=True):
        lines.append(row)
        for text in _text_sentences(finding):
            lines += wrapped(text, width, first=_INDENT, rest=_INDENT + "  ")
    return lines


def _text_sentences(finding: ValueFinding) -> list[str]:
    """Return the lines below a finding: location, detail, certainty, saving, suggestion."""
    why = clipped(finding.proof.why, 500)
    suggestion = suggestion_text(finding)
    sentences = (
        f"{operator_text(finding.operator, finding.path)} at {place_text(finding.place)}",
        detail_text(finding),
        f"{finding.proof.certainty.value}: {why}" if why else "",
        *_worth_sentences(finding),
        f"→ {suggestion}" if suggestion else "",
    )
    return [sentence for sentence in sentences if sentence]


def _worth_sentences(finding: ValueFinding) -> list[str]:
    worth = finding.worth
    return [
        text for text in (chain_text(worth), measured_text(worth), fix_speedup_text(worth)) if text
    ]


_MARKDOWN_HEADINGS: Final = ("#", "pattern", "operator", "location", *_TEXT_HEADINGS[2:])
_MARKDOWN_RIGHT: Final = (0, 4, 5, 6)


def values_markdown(profile: ValueProfile, *, most: int = 100) -> str:
    """Return a table of at most `most` findings, followed by their suggestions."""
    lines = [f"## Value profile of {escaped(title_of_program(profile))}", ""]
    if state_sentence(profile):
        lines += [f"**{escaped(state_sentence(profile))}**", ""]
    lines += [escaped(summary_sentence(profile)), ""]
    findings = ordered(profile)
    if findings:
        lines += [*_markdown_table(findings[:most], profile), ""]
        for number, finding in enumerate(findings[:most], start=1):
            lines += [f"{number}. {' '.join(_markdown_sentences(finding))}"]
        lines.append("")
    if len(findings) > most:
        lines += [f"{len(findings) - most:,} smaller findings are not shown.", ""]
    lines += ["<details><summary>Scope</summary>", ""]
    lines += [f"- {name}: {escaped(text)}" for name, text in scope_rows(profile)]
    lines += [f"- note: {escaped(note)}" for note in notes_of_profile(profile)]
    return "\n".join([*lines, "", "</details>"]) + "\n"


def _markdown_table(findings: list[ValueFinding], profile: ValueProfile) -> list[str]:
    rows = [
        (
            str(number),
            clipped(finding.pattern),
            operator_text(finding.operator, finding.path),
            clipped(place_text(finding.place)),
            calls_text(finding),
            bytes_text(finding, profile),
            time_text(finding.worth),
            certainty_text(finding),
        )
        for number, finding in enumerate(findings, start=1)
    ]
    return markdown_table(_MARKDOWN_HEADINGS, escaped_cells(rows), right=_MARKDOWN_RIGHT)


def _markdown_sentences(finding: ValueFinding) -> Iterator[str]:
    yield f"{escaped(detail_text(finding) or clipped(finding.pattern))}."
    if finding.proof.why:
        why = clipped(finding.proof.why, 500)
        yield f"{finding.proof.certainty.value.capitalize()}: {escaped(why)}."
    for text in _worth_sentences(finding):
        yield f"{escaped(text[0].upper() + text[1:])}."
    if suggestion_text(finding):
        parts = code_spans(suggestion_text(finding))
        yield "**Suggestion:** " + "".join(
            f"`{part}`" if code else _kept_spaces(part) for code, part in parts
        )


def _kept_spaces(text: str) -> str:
    """Escape a text but keep the spaces at its ends, which separate it from code spans."""
    before, after = text[:1] == " ", text[1:] and text[-1:] == " "
    return f"{' ' if before else ''}{escaped(text)}{' ' if after else ''}"
