"""A diagnosis in words for a terminal: what, why, what to do, and the lines that show it."""

from __future__ import annotations

import textwrap

from torchyard.build.diagnosis.verdict import Cause, Diagnosis

__all__ = ["describe"]

_WIDTH = 96
_COMMAND_SHOWN = 400


def describe(diagnosis: Diagnosis) -> str:
    """Plain text, without a line break at its end."""
    if not diagnosis.failed:
        return _no_failure(diagnosis)
    parts: list[str] = []
    main = diagnosis.root
    if main is None and diagnosis.first_error is None and diagnosis.causes:
        main = diagnosis.causes[0]
    if main is not None:
        parts.append(_cause(main))
    elif diagnosis.first_error is not None:
        parts.append("The cause is not one of the known ones.")
    else:
        parts.append(f"No error can be seen in the {diagnosis.lines} lines of the log.")
    parts += _facts(diagnosis)
    others = diagnosis.causes[1:] if main is not None else diagnosis.causes
    if others:
        parts.append("\n".join(["Also seen:", *(_short(cause) for cause in others)]))
    return "\n\n".join(parts)


def _no_failure(diagnosis: Diagnosis) -> str:
    why = " The exit code of the build is 0." if diagnosis.exit_code == 0 else ""
    parts = [f"No failure found in the {diagnosis.lines} lines of the log.{why}"]
    error = diagnosis.overcome
    if error is not None:
        parts.append(
            f"An error that did not end the build ({error.tool}), line {error.line}:\n  {error.text}"
        )
    parts += [_cause(cause) for cause in diagnosis.causes]
    return "\n\n".join(parts)


def _cause(cause: Cause) -> str:
    lines = [f"{cause.title} [{cause.id}]"]
    for evidence in cause.evidence:
        where = f"line {evidence.line}: " if evidence.line else ""
        lines.append(f"  {where}{evidence.text}")
    if cause.matches > len(cause.evidence):
        lines.append(f"  ... {cause.matches} such lines in all")
    lines += ["", *_wrapped("Why: ", cause.cause)]
    if cause.remedy:
        lines += ["", "What to do:"]
        for remedy in cause.remedy:
            lines += _wrapped("  - ", remedy)
    if cause.commands:
        lines += ["", "Commands:", *(f"    {command}" for command in cause.commands)]
    if cause.references:
        lines += ["", *_wrapped("See: ", ", ".join(cause.references))]
    return "\n".join(lines)


def _facts(diagnosis: Diagnosis) -> list[str]:
    parts: list[str] = []
    first = diagnosis.first_error
    shown = diagnosis.root.evidence if diagnosis.root is not None else ()
    if first is not None and first.line not in {evidence.line for evidence in shown}:
        parts.append(f"First error ({first.tool}), line {first.line}:\n  {first.text}")
    failed = diagnosis.failed_command
    if failed is not None:
        code = f", exit code {failed.exit_code}" if failed.exit_code is not None else ""
        lines = [f"What failed (line {failed.line}{code}): {failed.target}"]
        if failed.command:
            command = failed.command
            cut = len(command) > _COMMAND_SHOWN
            lines.append(f"  {command[:_COMMAND_SHOWN]}{' ...' if cut else ''}")
        parts.append("\n".join(lines))
    return parts


def _short(cause: Cause) -> str:
    why = f", follows from {cause.consequence_of}" if cause.consequence_of else ""
    lines = [f"  - {cause.title} [{cause.id}{why}]"]
    if cause.evidence and cause.evidence[0].line:
        lines.append(f"      line {cause.evidence[0].line}: {cause.evidence[0].text[:_WIDTH]}")
    if cause.remedy and not cause.consequence_of:
        lines += _wrapped("      ", cause.remedy[0])
    return "\n".join(lines)


def _wrapped(lead: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * (len(lead) - len(lead.lstrip()) + (2 if "-" in lead else 0)),
        break_long_words=False,
        break_on_hyphens=False,
    )
