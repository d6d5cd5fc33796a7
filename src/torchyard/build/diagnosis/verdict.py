"""What a diagnosis says, as data. Knows nothing of how a log is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchyard.build.diagnosis.signature import Level

__all__ = ["Cause", "Diagnosis", "Evidence", "FailedCommand", "FirstError"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A line of the log that a cause was recognised by."""

    line: int
    """Number of the line in the log, from 1; 0 for what no line says, such as an exit code."""
    text: str


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One recognised cause, with the values of this log filled in."""

    id: str
    title: str
    level: Level
    cause: str
    remedy: tuple[str, ...]
    commands: tuple[str, ...]
    """To be read before they are run: captured values in them are quoted for a shell."""
    references: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    """The first lines that show it; `matches` says how many there are."""
    matches: int
    values: dict[str, str] = field(default_factory=dict)
    """What the patterns captured, by name."""
    consequence_of: str = ""
    """Id of the cause that explains this one."""


@dataclass(frozen=True, kw_only=True)
class FirstError:
    """The first line that is really an error, whoever knows its cause."""

    line: int
    text: str
    tool: str
    """Who says it: compiler, linker, cmake, ninja, make, python, pip, git, apt, shell, ..."""
    weak: bool = False
    """It only reports that something else failed, and nothing better was found."""


@dataclass(frozen=True, kw_only=True)
class FailedCommand:
    """The command that ninja, or the target that make, reports as failed."""

    target: str
    command: str
    """Empty where only the target is known: the log does not show it."""
    line: int
    exit_code: int | None = None
    from_ninja: bool = False


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All that a log tells about a failure, or that there is none."""

    causes: tuple[Cause, ...]
    """The likeliest root cause first, consequences of others last."""
    first_error: FirstError | None
    failed_command: FailedCommand | None
    lines: int
    """Length of the log."""
    log: str = ""
    """Path of the log, when it was read from a file."""
    exit_code: int | None = None
    failed: bool = True
    """Whether the build failed, by its exit code or by the last statement of the log."""
    overcome: FirstError | None = None
    """The first error of a build that did not fail."""

    @property
    def root(self) -> Cause | None:
        """The likeliest cause that can end a build.

        A loss is one where it explains a failure that followed from it; a notice never is.

        A general cause behind an error that nobody knows is taken for its consequence: after a
        syntax error, a compiler that treats warnings as errors reports some of those, too.
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
