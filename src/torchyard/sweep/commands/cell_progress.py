"""Cells of a sweep on the command line: tables, failure reasons, live progress, and the exit code.

Progress is a live table on a terminal and a line per cell in a log. The verdicts of a cell are read
from its run once, when the cell ends. Errors here do not end a sweep: unreadable runs are omitted.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchyard.bench.commands.execution import exit_code_of
from torchyard.cli.invoke import INTERRUPTED
from torchyard.cli.output import data_console, print_data, print_json, print_message, printable
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.short_names import short_texts
from torchyard.core.units import format_count, format_percent
from torchyard.errors import MissingTool, TimeLimit, TorchyardError, Untrustworthy, WorkerFailed
from torchyard.presentation.safe_text import aligned, one_line
from torchyard.results.report import when
from torchyard.sweep.execution import SweepExecution
from torchyard.sweep.model import CellState, CellStatus, SweepPlan, SweepView

if TYPE_CHECKING:
    from rich.console import RenderableType


Rows = Mapping[str, Sequence[Comparison]]
"""Comparisons of cells with a finished run, by cell id."""

_STATES: tuple[CellState, ...] = ("done", "running", "paused", "queued", "waiting", "failed")


def counts_text(statuses: Iterable[CellStatus]) -> str:
    """Return the number of cells by state, such as `3 done, 1 running, 4 waiting`."""
    states = [status.state for status in statuses]
    counts = [f"{states.count(state)} {state}" for state in _STATES if state in states]
    return ", ".join(counts) or "no cells"


def rows_of(status: CellStatus, folder: Path) -> Sequence[Comparison]:
    """Return the comparisons of a cell so far; empty if its run cannot be read.

    Those of an unfinished cell are provisional.
    """
    from torchyard.results.run_reader import read_run

    if not status.run or status.state == "failed":
        return ()
    try:
        return read_run(folder / status.run).comparisons
    except TorchyardError:
        return ()


def verdicts_text(rows: Sequence[Comparison], *, reasons: bool = True) -> str:
    """Return text such as `inductor faster 1.25x, aot_eager failed (reason)`."""
    verdicts = []
    for row in rows:
        number = f"{row.estimate.speedup:.3f}x" if row.estimate is not None else ""
        speedup = f" {number if row.trusted else f'({number})'}" if number else ""
        why = "; ".join(map(one_line, row.untrusted))[:120]
        why = one_line(row.failure.message)[:120] if row.failure is not None else why
        verdicts.append(
            f"{row.candidate} {row.state}{speedup}" + (f" ({why})" if why and reasons else "")
        )
    return ", ".join(verdicts)


def cell_table(statuses: Sequence[CellStatus], rows: Rows) -> str:
    """Return a table with one line per cell, and verdicts of finished cells."""
    cells = [
        (
            status.cell.id,
            _state(status),
            str(len(status.attempts) or ""),
            _now_text(status, rows.get(status.cell.id, ())),
        )
        for status in statuses
    ]
    return aligned([("CELL", "STATE", "TRIES", "NOW"), *cells])


def _now_text(status: CellStatus, rows: Sequence[Comparison]) -> str:
    """Return the verdicts of a finished cell, or the activity and provisional speedups of others."""
    if status.state == "done":
        return verdicts_text(rows, reasons=False)
    return "; ".join(text for text in (provisional_text(rows), status.text) if text)


def provisional_text(rows: Sequence[Comparison]) -> str:
    """Return text such as `provisional: inductor ~1.25x after 2 launches`; empty without a launch."""
    texts = []
    for row in rows:
        estimate = row.estimate
        if estimate is not None and estimate.launches:
            launches = f"{estimate.launches} launch{'' if estimate.launches == 1 else 'es'}"
            texts.append(f"{row.candidate} ~{estimate.speedup:.3f}x after {launches}")
        elif row.failure is not None:
            texts.append(f"{row.candidate} failed")
    return f"provisional: {', '.join(texts)}" if texts else ""


def failed_text(statuses: Sequence[CellStatus], rows: Rows, folder: Path) -> str:
    """Return why cells and rows failed and their log files; empty if none failed."""
    lines = []
    for status in statuses:
        for row in rows.get(status.cell.id, ()) if status.state == "done" else ():
            if row.verdict is Verdict.FAILED and row.failure is not None:
                why = f"{row.failure.kind} ({row.failure.phase}): {one_line(row.failure.message)}"
                lines.append(f"{status.cell.id}: {row.candidate} {why}")
                lines += [f"  log: {row.failure.log}"] if row.failure.log else []
        if status.state == "failed":
            lines += _failed_attempts(status, folder)
    return "\n".join(lines)


def _failed_attempts(status: CellStatus, folder: Path) -> list[str]:
    lines = [f"{status.cell.id}: {one_line(status.text) or 'no reason recorded'}"]
    for attempt in status.attempts:
        place = f" on {attempt.place}" if attempt.place else ""
        outcome = ", ".join(
            part for part in (attempt.outcome or "lost", one_line(attempt.why)) if part
        )
        lines.append(f"  attempt {attempt.number}{place}: {outcome}")
    log = next((attempt.log for attempt in reversed(status.attempts) if attempt.log), "")
    return [*lines, f"  log: {folder / log}"] if log else lines


def sweep_row(folder: Path, plan: SweepPlan, statuses: Sequence[CellStatus]) -> tuple[str, ...]:
    """Return the cells of one sweep in the table of sweeps."""
    part, parts = plan.shard
    return (
        folder.name,
        when(plan.created),
        plan.name + (f" {part}/{parts}" if parts > 1 else "") + (" A/A" if plan.null else ""),
        plan.executor.name,
        counts_text(statuses),
    )


def sweep_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table with one line per sweep."""
    return aligned([("SWEEP", "CREATED", "NAME", "EXECUTOR", "CELLS"), *rows])


def _state(status: CellStatus) -> str:
    if status.state in ("running", "paused") and status.fraction is not None:
        return f"{status.state} {format_percent(status.fraction)}"
    return status.state


RECENT: Final = 8
"""Number of ended cells in the live table."""
MOST_RUNNING: Final = 12
_BAR_WIDTH: Final = 12

Listener = Callable[[SweepView], None]


class EndedCells:
    """Tracks which cells have ended since the last snapshot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: set[str] | None = None
        self.recent: deque[str] = deque(maxlen=RECENT)
        self.failed = 0
        """Cells without a speedup: failed, or finished with failed rows only."""

    def update(self, view: SweepView) -> list[str]:
        """Return a line for each cell that ended since the last call; empty for the first call."""
        ended = {one.cell.id: one for one in view.statuses if not one.is_open}
        before = self._ended or set()
        lines = []
        labels = short_texts(one.cell.label for one in view.statuses)
        for cell, one in ended.items():
            if cell not in before:
                rows = rows_of(one, self._folder)
                all_failed = bool(rows) and all(row.verdict is Verdict.FAILED for row in rows)
                self.failed += one.state == "failed" or all_failed
                lines.append(ended_text(one, rows, labels[one.cell.label]))
        new_lines = [] if self._ended is None else lines
        self._ended = before | set(ended)
        self.recent.extend(new_lines)
        return new_lines


def ended_text(status: CellStatus, rows: Sequence[Comparison], label: str) -> str:
    """Return text such as `kernels/matmul inference: inductor faster 1.23x`, or the failure."""
    if status.state == "failed":
        return f"{label}: FAILED, {one_line(status.text) or 'no reason recorded'}"
    return f"{label}: {verdicts_text(rows) or 'done'}"


@contextmanager
def show_sweep(folder: Path, *, quiet: bool) -> Iterator[Listener]:
    """Yield a progress callback that shows snapshots of the sweep on stderr."""
    tracker = EndedCells(folder)
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _live(tracker) as listener:
            yield listener
    else:
        yield _lines(tracker)


def _lines(tracker: EndedCells) -> Listener:
    def listen(view: SweepView) -> None:
        lines = tracker.update(view)
        ended_before = view.closed - len(lines)
        for number, line in enumerate(lines, start=ended_before + 1):
            print_message(f"[{number}/{len(view.statuses)} {clock_text(view.elapsed_s)}] {line}")

    return listen


@contextmanager
def _live(tracker: EndedCells) -> Iterator[Listener]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, emoji=False)
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def listen(view: SweepView) -> None:
            for line in tracker.update(view):
                # Failures stay on the terminal; other cells leave the table after a while.
                if ": FAILED, " in line:
                    live.console.print(printable(line), markup=False)
            live.update(live_table(view, list(tracker.recent), failed=tracker.failed), refresh=True)

        yield listen


def live_table(view: SweepView, recent: list[str], *, failed: int) -> RenderableType:
    """Return the live table: overall progress, running cells, recently ended cells."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    running = [one for one in view.statuses if one.state == "running"]
    labels = short_texts(one.cell.label for one in view.statuses)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="ellipsis", no_wrap=True)
    for one in running[:MOST_RUNNING]:
        share = "" if one.fraction is None else f"{one.fraction:.0%}"
        grid.add_row(
            Text(printable(labels[one.cell.label])),
            share,
            Text(printable(one_line(one.text)), style="dim"),
        )
    if len(running) > MOST_RUNNING:
        grid.add_row(f"and {len(running) - MOST_RUNNING} more", "", "")
    ended = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in recent]
    return Group(Text(_head(view, failed), style="bold"), grid, *ended)


def _head(view: SweepView, failed: int) -> str:
    total, ended = len(view.statuses), view.closed
    filled = round(_BAR_WIDTH * ended / max(1, total))
    parts = [
        f"{ended} of {total} cells",
        f"{view.count('running')} running" if view.count("running") else "",
        f"{view.count('paused')} waiting for another launch" if view.count("paused") else "",
        f"{view.count('queued')} queued" if view.plan.executor.name != "local" else "",
        f"{failed} failed" if failed else "",
        f"{clock_text(view.elapsed_s)} elapsed",
        f"~{clock_text(view.remaining_s)} left" if view.remaining_s is not None else "",
    ]
    bar = "#" * filled + "." * (_BAR_WIDTH - filled)
    return f"[{bar}] {', '.join(part for part in parts if part)}"


def clock_text(duration_s: float) -> str:
    """Format a duration as `4:05` or `1:02:03`."""
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


@dataclass(kw_only=True)
class SweepSession(SweepExecution):
    """One execution of a sweep that shows its progress and prints its results."""

    quiet: bool = False

    def run_with_progress(self) -> int:
        """Drive the sweep to its end and return the exit code."""
        for note in self.notes:
            print_message(f"note: {note}")
        try:
            with show_sweep(self.folder.folder, quiet=self.quiet) as listener:
                self.run(listener)
        except KeyboardInterrupt:
            message = f"; {self.detach_message}" if self.detach_message else ""
            print_message(f"interrupted: {counts_text(self.statuses)}{message}")
        else:
            if not any(status.is_open for status in self.statuses):
                return self._exit_code()
            if self.out_of_time:
                return self._end_without_all_cells()
            # Jobs were cancelled, or other processes run cells: the next driver resumes them.
            print_message(f"stopped: {counts_text(self.statuses)}")
            for line in _running_elsewhere(self.statuses):
                print_message(line)
        print_message(f"resume with: {self.resume_command}")
        return INTERRUPTED

    def _end_without_all_cells(self) -> int:
        """Say which cells have no launch after the time budget, and return the exit code."""
        without = sum(status.is_open for status in self.statuses)
        print_message(
            f"the time budget was used up: {without} of {format_count(len(self.statuses), 'cell')} "
            "without a finished launch"
        )
        print_message(f"resume with: {self.resume_command}")
        return self._exit_code() if self.runs else TimeLimit.exit_code

    @property
    def resume_command(self) -> str:
        """The shell command that resumes this sweep."""
        return f"torchyard sweep --resume {shlex.quote(str(self.folder.folder))}"

    def print_json(self) -> None:
        """Print the sweep as one JSON object."""
        from torchyard.core.records import encode

        comparisons: list[dict[str, Any]] = [
            {"run": run.id, "label": row.workload.label, **encode(row)}
            for run in self.runs.values()
            for row in run.comparisons
        ]
        print_json(
            {
                "folder": str(self.folder.folder),
                "name": self.folder.plan.name,
                "shard": list(self.folder.plan.shard),
                "null": self.folder.plan.null,
                "cells": [
                    # Without the study, which `sweep show --json` includes.
                    {"id": one.cell.id, "label": one.cell.label}
                    | {name: getattr(one, name) for name in ("state", "text", "run", "attempts")}
                    for one in self.statuses
                ],
                "runs": {name: run.id for name, run in self.runs.items()},
                "comparisons": comparisons,
            }
        )

    def print_table(self) -> None:
        """Print the verdicts of each run and the summary of the sweep."""
        from torchyard.bench.report.text import comparison_table
        from torchyard.sweep.report.text import sweep_text

        console = data_console()
        for name, run in self.runs.items():
            goal = run.study.budget.precision_goal
            console.print(f"{name}: run {run.id}", markup=False, style="bold", soft_wrap=True)
            console.print(comparison_table(run.comparisons, precision_goal=goal))
            console.print()
        print_data(printable(sweep_text(self.summary())))

    def _exit_code(self) -> int:
        code = exit_code_of([row for run in self.runs.values() for row in run.comparisons])
        if code in {WorkerFailed.exit_code, MissingTool.exit_code}:
            print_message("every comparison failed")
        elif code == Untrustworthy.exit_code:
            print_message(
                "some results are untrusted: see the notes and `torchyard explain untrusted`"
            )
        return code


def _running_elsewhere(statuses: Sequence[CellStatus]) -> list[str]:
    """Return messages about cells that other processes run."""
    running = [one for one in statuses if one.state in ("running", "paused") and one.attempts]
    if not running:
        return []
    places = ", ".join(dict.fromkeys(one.attempts[-1].place or "unknown" for one in running))
    return [
        f"{len(running)} cells are being run by other processes ({places})",
        "hint: if those processes have ended, add --take-over to measure their cells here",
    ]
