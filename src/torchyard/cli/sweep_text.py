"""Cells of a sweep as text: one line for each, and why and where those that failed did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torchyard.cli.results_text import columns, when
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.sweep import CellState, CellStatus, SweepPlan
from torchyard.core.units import format_percent
from torchyard.errors import TorchyardError

__all__ = [
    "Rows",
    "cell_table",
    "counts_text",
    "failed_text",
    "one_line",
    "rows_of",
    "sweep_row",
    "sweep_table",
    "verdicts_text",
]

Rows = Mapping[str, Sequence[Comparison]]
"""Comparisons of cells that have a finished run, by the cell's id."""

_STATES: tuple[CellState, ...] = ("done", "running", "queued", "waiting", "failed")


def one_line(text: str) -> str:
    """The text with its white space made single."""
    return " ".join(text.split())


def counts_text(statuses: Iterable[CellStatus]) -> str:
    """`3 done, 1 running, 4 waiting`."""
    states = [status.state for status in statuses]
    counts = [f"{states.count(state)} {state}" for state in _STATES if state in states]
    return ", ".join(counts) or "no cell"


def rows_of(status: CellStatus, folder: Path) -> Sequence[Comparison]:
    """The comparisons of a cell that is done; none where its run cannot be read."""
    from torchyard.results.run_reader import read_run

    if status.state != "done":
        return ()
    try:
        return read_run(folder / status.run).comparisons
    except TorchyardError:
        return ()


def verdicts_text(rows: Sequence[Comparison], *, reasons: bool = True) -> str:
    """`inductor faster 1.25x, aot_eager failed (why)`."""
    said = []
    for row in rows:
        number = f"{row.estimate.speedup:.3f}x" if row.estimate is not None else ""
        speedup = f" {number if row.trusted else f'({number})'}" if number else ""
        why = "; ".join(map(one_line, row.untrusted))[:120]
        why = one_line(row.failure.message)[:120] if row.failure is not None else why
        said.append(
            f"{row.candidate} {row.state}{speedup}" + (f" ({why})" if why and reasons else "")
        )
    return ", ".join(said)


def cell_table(statuses: Sequence[CellStatus], rows: Rows) -> str:
    """One line for each cell, with its verdicts where it is done."""
    return columns(
        ("CELL", "STATE", "TRIES", "NOW"),
        (
            (
                status.cell.id,
                _state(status),
                str(len(status.attempts) or ""),
                verdicts_text(rows.get(status.cell.id, ()), reasons=False)
                if status.state == "done"
                else status.text,
            )
            for status in statuses
        ),
    )


def failed_text(statuses: Sequence[CellStatus], rows: Rows, folder: Path) -> str:
    """Why cells and rows failed, and where the logs are; empty when none did."""
    lines = []
    for status in statuses:
        for row in rows.get(status.cell.id, ()):
            if row.verdict is Verdict.FAILED and row.failure is not None:
                why = f"{row.failure.kind} ({row.failure.phase}): {one_line(row.failure.message)}"
                lines.append(f"{status.cell.id}: {row.candidate} {why}")
                lines += [f"  log: {row.failure.log}"] if row.failure.log else []
        if status.state == "failed":
            lines += _given_up(status, folder)
    return "\n".join(lines)


def _given_up(status: CellStatus, folder: Path) -> list[str]:
    lines = [f"{status.cell.id}: {one_line(status.text) or 'no reason is known'}"]
    for attempt in status.attempts:
        place = f" on {attempt.place}" if attempt.place else ""
        said = ", ".join(
            part for part in (attempt.outcome or "gone", one_line(attempt.why)) if part
        )
        lines.append(f"  try {attempt.number}{place}: {said}")
    log = next((attempt.log for attempt in reversed(status.attempts) if attempt.log), "")
    return [*lines, f"  log: {folder / log}"] if log else lines


def sweep_row(folder: Path, plan: SweepPlan, statuses: Sequence[CellStatus]) -> tuple[str, ...]:
    """What a list says of one sweep."""
    part, parts = plan.shard
    return (
        folder.name,
        when(plan.created),
        plan.name + (f" {part}/{parts}" if parts > 1 else "") + (" A/A" if plan.null else ""),
        plan.executor.name,
        counts_text(statuses),
    )


def sweep_table(rows: Sequence[Sequence[str]]) -> str:
    """One line for each sweep."""
    return columns(("SWEEP", "CREATED", "NAME", "EXECUTOR", "CELLS"), rows)


def _state(status: CellStatus) -> str:
    if status.state == "running" and status.fraction is not None:
        return f"running {format_percent(status.fraction)}"
    return status.state
