"""What is wanted, as conditions of SQL. Values travel as parameters, never inside the text."""

# ruff: noqa: S608 -- only names of our own columns are put into statements; values are parameters

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torchyard.core.comparison import Verdict
from torchyard.core.stored import Wanted
from torchyard.errors import UsageError
from torchyard.results.index.entries import milliseconds
from torchyard.results.index.rows import verdict_bits
from torchyard.results.index.schema import VERDICTS

__all__ = ["Conditions", "build_conditions", "line_conditions", "run_conditions", "with_verdict"]

_SHORT_COMMIT: Final = 7
"""Letters from which on a revision may be the beginning of a commit."""


@dataclass
class Conditions:
    """Conditions that must all hold, with the values of their question marks."""

    texts: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, text: str, *values: Any) -> None:
        """One more."""
        self.texts.append(text)
        self.values.extend(values)

    def add_pattern(self, column: str, wanted: str) -> None:
        """The column is the text; where the text has * or ?, the column fits it."""
        if wanted:
            operator = "GLOB" if _is_pattern(wanted) else "="
            self.add(f"{column} {operator} ?", _glob(wanted) if operator == "GLOB" else wanted)

    def __bool__(self) -> bool:
        return bool(self.texts)

    def sql(self) -> str:
        """For WHERE and ON; true when there are none."""
        return " AND ".join(f"({text})" for text in self.texts) or "1"


def line_conditions(wanted: Wanted, *, machine: bool = True) -> Conditions:
    """On `lines l`."""
    found = Conditions()
    if wanted.workload and not _is_pattern(wanted.workload):
        # `models/gpt` means it in every mode and batch size; the whole label means just that one.
        found.add(
            "l.workload = ? OR l.workload GLOB ?", wanted.workload, _glob(wanted.workload) + " *"
        )
    else:
        found.add_pattern("l.workload", wanted.workload)
    found.add_pattern("l.suite", wanted.suite)
    found.add_pattern("l.mode", wanted.mode)
    found.add_pattern("l.device", wanted.device)
    found.add_pattern("l.baseline", wanted.baseline)
    found.add_pattern("l.candidate", wanted.candidate)
    if machine:
        found.add_pattern("l.machine", wanted.machine)
    return found


def run_conditions(wanted: Wanted) -> Conditions:
    """On `runs r`."""
    found = Conditions()
    if wanted.run:
        whole = wanted.run if _is_pattern(wanted.run) else wanted.run + "*"
        found.add("r.id GLOB ?", _glob(whole))
    found.add_pattern("r.study", wanted.study)
    found.add_pattern("r.state", wanted.state)
    found.add_pattern("r.machine", wanted.machine)
    if wanted.since:
        found.add("r.moment >= ?", _moment(wanted.since, "since"))
    if wanted.until:
        found.add("r.moment < ?", _moment(wanted.until, "until"))
    if wanted.verdicts:
        found.add("r.verdict_bits & ?", verdict_bits(wanted.verdicts))
    if wanted.revision:
        of_builds, of_runs = build_conditions(wanted), _revision("r.revision", wanted.revision)
        found.add(
            "r.number IN (SELECT rb.run FROM builds b JOIN run_builds rb ON rb.build = b.number"
            f" WHERE {of_builds.sql()}) OR {of_runs.sql()}",
            *of_builds.values,
            *of_runs.values,
        )
    return found


def build_conditions(wanted: Wanted) -> Conditions:
    """On `builds b`."""
    return _revision("b.revision", wanted.revision) if wanted.revision else Conditions()


def with_verdict(column: str, verdicts: Sequence[Verdict]) -> Conditions:
    """On the column of a verdict."""
    found = Conditions()
    if verdicts:
        marks = ", ".join("?" * len(verdicts))
        found.add(f"{column} IN ({marks})", *(VERDICTS.index(verdict) for verdict in verdicts))
    return found


def _revision(column: str, wanted: str) -> Conditions:
    found = Conditions()
    if not _is_pattern(wanted) and len(wanted) >= _SHORT_COMMIT:
        found.add(f"{column} GLOB ?", _glob(wanted) + "*")
    else:
        found.add_pattern(column, wanted)
    return found


def _is_pattern(text: str) -> bool:
    return "*" in text or "?" in text


def _glob(text: str) -> str:
    """SQLite would read [ as the start of a set of letters."""
    return text.replace("[", "[[]")


def _moment(text: str, what: str) -> int:
    try:
        return milliseconds(text)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{what}: {text!r} is not a moment",
            why=str(error),
            hint="write it like 2025-01-31 or 2025-01-31T12:00:00Z",
        ) from error
