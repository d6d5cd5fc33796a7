"""Cells of a sweep as text: one line for each, and why and where those that failed did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from torchyard.cli.results_text import columns, when
from torchyard.core.sweep import CellState, CellStatus, SweepPlan
from torchyard.core.units import format_percent

__all__ = ["cell_table", "counts_text", "failed_text", "one_line", "sweep_row", "sweep_table"]

_STATES: tuple[CellState, ...] = ("done", "running", "queued", "waiting", "failed")


def one_line(text: str) -> str:
    """The text with its white space made single."""
    return " ".join(text.split())


def counts_text(statuses: Iterable[CellStatus]) -> str:
    """`3 done, 1 running, 4 waiting`."""
    states = [status.state for status in statuses]
    counts = [f"{states.count(state)} {state}" for state in _STATES if state in states]
    return ", ".join(counts) or "no cell"


def cell_table(statuses: Sequence[CellStatus]) -> str:
    """One line for each cell."""
    return columns(
        ("CELL", "STATE", "TRIES", "NOW"),
        (
            (
                status.cell.id,
                _state(status),
                str(len(status.attempts) or ""),
                status.text if status.state != "done" else "",
            )
            for status in statuses
        ),
    )


def failed_text(statuses: Sequence[CellStatus], folder: Path) -> str:
    """Why each failed cell failed, and where its log is; empty when none did."""
    lines = []
    for status in statuses:
        if status.state != "failed":
            continue
        lines.append(f"{status.cell.id}: {one_line(status.text) or 'no reason is known'}")
        for attempt in status.attempts:
            said = f"{attempt.outcome or 'gone'}"
            place = f" on {attempt.place}" if attempt.place else ""
            lines.append(f"  try {attempt.number}{place}: {said}, {one_line(attempt.why)}")
        log = next((attempt.log for attempt in reversed(status.attempts) if attempt.log), "")
        if log:
            lines.append(f"  log: {folder / log}")
    return "\n".join(lines)


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
