"""A diagnosis as data and as terminal text: cause, suggested fix, evidence."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchyard.builds.diagnosis.signature import Level
from torchyard.presentation.safe_text import wrapped


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A line of the log that shows a cause."""

    line: int
    """Line number, from 1; 0 for facts outside of the log, such as an exit code."""
    text: str


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A detected cause, with the values of this log filled in."""

    id: str
    title: str
    level: Level
    cause: str
    remedy: tuple[str, ...]
    commands: tuple[str, ...]
    """Captured values in them are quoted for a shell. Review them before running."""
    references: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    """The first lines that show it; `matches` is their total number."""
    matches: int
    values: dict[str, str] = field(default_factory=dict)
    """Values captured by the patterns, by name."""
    consequence_of: str = ""
    """Id of the cause that explains this one."""


@dataclass(frozen=True, kw_only=True)
class FirstError:
    """The first line that is a real error, whether or not its cause is known."""

    line: int
    text: str
    tool: str
    """Its origin: compiler, linker, cmake, ninja, make, python, pip, git, apt, shell, ..."""
    weak: bool = False
    """It only reports that something else failed, and there is no better line."""


@dataclass(frozen=True, kw_only=True)
class FailedCommand:
    """The command that ninja, or the target that make, reports as failed."""

    target: str
    command: str
    """Empty if the log shows only the target."""
    line: int
    exit_code: int | None = None
    from_ninja: bool = False


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The result of diagnosing a log; `failed` is False if there is no failure."""

    causes: tuple[Cause, ...]
    """The most likely root cause first, consequences of others last."""
    first_error: FirstError | None
    failed_command: FailedCommand | None
    lines: int
    """Number of lines of the log."""
    log: str = ""
    """Path of the log, if it was read from a file."""
    exit_code: int | None = None
    failed: bool = True
    """Whether the build failed, by its exit code or by the last statement of the log."""
    overcome: FirstError | None = None
    """The first error of a build that did not fail."""

    @property
    def root(self) -> Cause | None:
        """The most likely cause of the failure.

        A loss counts if it explains a later failure; a notice never does. A general cause after an
        unknown error counts as its consequence: after a syntax error, for example, a compiler may
        also report warnings as errors.
        """
        first = self.causes[0] if self.causes else None
        if first is None or not self.failed:
            return None
        if first.level == "loss" and any(
            cause.consequence_of == first.id and cause.level in {"fatal", "general"}
            for cause in self.causes
        ):
            return first
        if first.level not in {"fatal", "general"}:
            return None
        error = self.first_error
        if first.level == "general" and error is not None and not error.weak:
            shown = [evidence.line for evidence in first.evidence if evidence.line]
            if not shown or error.line < min(shown):
                return None
        return first


_WIDTH = 96
_COMMAND_SHOWN = 400


def describe(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as plain text, without a trailing line break."""
    if not diagnosis.failed:
        return _no_failure(diagnosis)
    parts: list[str] = []
    main = diagnosis.root
    if main is None and diagnosis.first_error is None and diagnosis.causes:
        main = diagnosis.causes[0]
    if main is not None:
        parts.append(_cause(main))
    elif diagnosis.first_error is not None:
        parts.append("The cause is unknown.")
    else:
        parts.append(f"No error found in the {diagnosis.lines} lines of the log.")
    parts += _facts(diagnosis)
    others = diagnosis.causes[1:] if main is not None else diagnosis.causes
    if others:
        parts.append("\n".join(["Also found:", *(_short(cause) for cause in others)]))
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
        lines.append(f"  ... {cause.matches} such lines in total")
    lines += ["", *_wrapped("Why: ", cause.cause)]
    if cause.remedy:
        lines += ["", "Fix:"]
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
        lines = [f"Failed command (line {failed.line}{code}): {failed.target}"]
        if failed.command:
            command = failed.command
            cut = len(command) > _COMMAND_SHOWN
            lines.append(f"  {command[:_COMMAND_SHOWN]}{' ...' if cut else ''}")
        parts.append("\n".join(lines))
    return parts


def _short(cause: Cause) -> str:
    why = f", consequence of {cause.consequence_of}" if cause.consequence_of else ""
    lines = [f"  - {cause.title} [{cause.id}{why}]"]
    if cause.evidence and cause.evidence[0].line:
        lines.append(
            f"      line {cause.evidence[0].line}: {cause.evidence[0].text[:_WIDTH].rstrip()}"
        )
    if cause.remedy and not cause.consequence_of:
        lines += _wrapped("      ", cause.remedy[0])
    return "\n".join(lines)


def _wrapped(lead: str, text: str) -> list[str]:
    rest = " " * (len(lead) - len(lead.lstrip()) + (2 if "-" in lead else 0))
    return wrapped(text, _WIDTH, first=lead, rest=rest)
