"""Cells of a sweep as text: tables and failure reasons, and live progress on stderr.

Progress is a live table on a terminal and a line per cell in a log. It listens to views of the
sweep only; the verdicts of a cell are read from its run once, when the cell ends. Nothing here can
end a sweep: what cannot be read is omitted.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchyard.cli.output import printable, talk
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.units import format_percent
from torchyard.errors import TorchyardError
from torchyard.results.report import columns, when
from torchyard.sweep.model import CellState, CellStatus, SweepPlan, SweepView

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


if TYPE_CHECKING:
    from rich.console import RenderableType


RECENT: Final = 8
"""Ended cells that the live table still shows."""
MOST_RUNNING: Final = 12
_BAR_LETTERS: Final = 12

Listener = Callable[[SweepView], None]


class SweepWatch:
    """What changed since the last view: the cells that have ended, each told once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._over: set[str] | None = None
        self.recent: deque[str] = deque(maxlen=RECENT)
        self.failed = 0
        """Cells without a single number: given up, or finished with nothing but failures."""

    def ended(self, view: SweepView) -> list[str]:
        """A line for each cell that is over now and was not before; none for the first view."""
        over = {one.cell.id: one for one in view.statuses if one.state in ("done", "failed")}
        known = self._over or set()
        lines = []
        for cell, one in over.items():
            if cell not in known:
                rows = rows_of(one, self._folder)
                self.failed += one.state == "failed" or _all_failed(rows)
                lines.append(ended_text(one, rows))
        told = [] if self._over is None else lines
        self._over = known | set(over)
        self.recent.extend(told)
        return told


def ended_text(status: CellStatus, rows: Sequence[Comparison]) -> str:
    """`kernels/matmul inference: inductor faster 1.23x`, or why there is no number."""
    if status.state == "failed":
        return f"{status.cell.label}: FAILED, {one_line(status.text) or 'no reason is known'}"
    return f"{status.cell.label}: {verdicts_text(rows) or 'done'}"


def _all_failed(rows: Sequence[Comparison]) -> bool:
    return bool(rows) and all(row.verdict is Verdict.FAILED for row in rows)


@contextmanager
def show_sweep(folder: Path, *, quiet: bool) -> Iterator[Listener]:
    """A listener that shows views while the block runs."""
    watch = SweepWatch(folder)
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _live(watch) as listener:
            yield listener
    else:
        yield _lines(watch)


def _lines(watch: SweepWatch) -> Listener:
    def listen(view: SweepView) -> None:
        lines = watch.ended(view)
        over = view.count("done", "failed") - len(lines)
        for number, line in enumerate(lines, start=over + 1):
            talk(f"[{number}/{len(view.statuses)} {clock_text(view.elapsed_s)}] {line}")

    return listen


@contextmanager
def _live(watch: SweepWatch) -> Iterator[Listener]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, emoji=False)
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def listen(view: SweepView) -> None:
            for line in watch.ended(view):
                # Failures stay on the terminal; the rest scrolls through the table.
                if ": FAILED, " in line:
                    live.console.print(printable(line), markup=False)
            live.update(board_of(view, list(watch.recent), failed=watch.failed), refresh=True)

        yield listen


def board_of(view: SweepView, recent: list[str], *, failed: int) -> RenderableType:
    """The live table: how far, what runs now, what ended last."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    running = [one for one in view.statuses if one.state == "running"]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="ellipsis", no_wrap=True)
    for one in running[:MOST_RUNNING]:
        share = "" if one.fraction is None else f"{one.fraction:.0%}"
        grid.add_row(
            Text(printable(one.cell.label)), share, Text(printable(one_line(one.text)), style="dim")
        )
    if len(running) > MOST_RUNNING:
        grid.add_row(f"and {len(running) - MOST_RUNNING} more", "", "")
    ended = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in recent]
    return Group(Text(_head(view, failed), style="bold"), grid, *ended)


def _head(view: SweepView, failed: int) -> str:
    total, over = len(view.statuses), view.count("done", "failed")
    filled = round(_BAR_LETTERS * over / max(1, total))
    parts = [
        f"{over} of {total} cells",
        f"{view.count('running')} running" if view.count("running") else "",
        f"{view.count('queued')} queued" if view.plan.executor.name != "local" else "",
        f"{failed} failed" if failed else "",
        f"{clock_text(view.elapsed_s)} elapsed",
        f"~{clock_text(view.remaining_s)} left" if view.remaining_s is not None else "",
    ]
    bar = "#" * filled + "." * (_BAR_LETTERS - filled)
    return f"[{bar}] {', '.join(part for part in parts if part)}"


def clock_text(duration_s: float) -> str:
    """`4:05` or `1:02:03`."""
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
