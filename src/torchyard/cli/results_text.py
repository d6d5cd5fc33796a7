"""Runs and comparisons of the store as text: columns that never cut anything off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from torchyard.core.stored import ComparisonEntry, RunEntry

__all__ = ["columns", "comparison_table", "run_table", "run_text", "when"]

_COMMIT_LETTERS: Final = 10
_COMMIT_WHOLE: Final = 40


def columns(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns with a heading; the last one runs free."""
    table = [list(heading), *([_one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in table) for place in range(len(heading))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def run_table(runs: Sequence[RunEntry]) -> str:
    """One line for each run."""
    return columns(
        ("RUN", "STARTED", "STUDY", "REVISION", "MACHINE", "RESULTS"),
        (
            (
                run.id,
                when(run.started),
                run.study,
                _short(run.revision),
                run.machine,
                _results(run),
            )
            for run in runs
        ),
    )


def comparison_table(entries: Sequence[ComparisonEntry], *, with_run: bool = True) -> str:
    """One line for each comparison."""
    heading: tuple[str, ...]
    rows: list[tuple[str, ...]]
    heading = ("WORKLOAD", "BASELINE", "CANDIDATE", "VERDICT", "SPEEDUP", "INTERVAL", "LAUNCHES")
    rows = [
        (
            entry.workload,
            entry.baseline,
            entry.candidate,
            entry.verdict.value,
            _bracketed(entry, _number(entry.speedup)),
            _bracketed(
                entry,
                f"{_number(entry.low)} to {_number(entry.high)}" if entry.low is not None else "",
            ),
            str(entry.launches or ""),
        )
        for entry in entries
    ]
    if any(not entry.trusted for entry in entries):
        heading += ("UNTRUSTED BECAUSE",)
        rows = [(*row, entry.untrusted) for row, entry in zip(rows, entries, strict=True)]
    if not with_run:
        return columns(heading, rows)
    runs = [(entry.run, _short(entry.revision), entry.machine) for entry in entries]
    return columns(
        ("RUN", *heading, "REVISION", "MACHINE"),
        [(run, *row, *rest) for (run, *rest), row in zip(runs, rows, strict=True)],
    )


def run_text(run: RunEntry, comparisons: Sequence[ComparisonEntry]) -> str:
    """Everything that is known of a run, for people."""
    facts = {
        "study": run.study,
        "state": run.state,
        "started": run.started,
        "finished": run.finished or "",
        "revision": run.revision,
        "torch": run.torch,
        "machine": f"{run.machine} ({run.machine_text})" if run.machine_text else run.machine,
        "torchyard": run.torchyard,
        "folder": run.folder,
        "unreadable": run.damage,
    }
    lines = [run.id, *(f"  {name:<10} {_one_line(text)}" for name, text in facts.items() if text)]
    lines += [f"  {'note':<10} {_one_line(note)}" for note in run.notes]
    if comparisons:
        lines += ["", comparison_table(comparisons, with_run=False)]
    return "\n".join(lines)


def when(moment: str) -> str:
    """`2025-01-31 12:00` in UTC, as recorded."""
    return moment[:16].replace("T", " ")


def _results(run: RunEntry) -> str:
    if run.damage:
        return f"unreadable: {run.damage}"
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in run.verdicts)
    state = "" if run.state == "finished" else run.state
    marks = f"{len(run.notes)} note{'s' if len(run.notes) > 1 else ''}" if run.notes else ""
    return "; ".join(part for part in (counts or "no comparison", state, marks) if part)


def _short(revision: str) -> str:
    """Commits cut to what people use of them; other texts as they are."""
    return ", ".join(
        part[:_COMMIT_LETTERS] if len(part) == _COMMIT_WHOLE and part.isalnum() else part
        for part in revision.split(", ")
    )


def _bracketed(entry: ComparisonEntry, text: str) -> str:
    """Numbers in parentheses are not to be used."""
    return text if entry.trusted or not text else f"({text})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
