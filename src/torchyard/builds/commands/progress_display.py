"""Live progress of a build on stderr: a bar per running step; plain lines without a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from torchyard.builds.plan import BuildEvent, BuildListener, ignore_build_events
from torchyard.cli.output import print_message, printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PROGRESS_INTERVAL_S: Final = 30.0
"""Time between two progress lines of one step when stderr is not a terminal."""
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600


def time_text(seconds: float) -> str:
    """Format a duration: `8 s`, `3 min 20 s`, `1 h 05 min`."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"  # noqa: PLR2004
    if seconds < _HOUR_S:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02d} min"


@contextmanager
def show_build_progress(*, quiet: bool) -> Iterator[BuildListener]:
    """Yield a listener that shows build events."""
    if quiet:
        yield ignore_build_events
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _progress_bars() as progress:
            yield _TerminalDisplay(progress)
    else:
        yield _LineDisplay()


def _progress_bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[remaining]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )


class _TerminalDisplay:
    """Show a bar for each running step, and a line above the bars for each finished one."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, event: BuildEvent) -> None:
        if event.kind == "start":
            self._tasks[event.step] = self._progress.add_task(
                printable(f"{event.step}: {event.text}"), total=None, remaining=""
            )
        elif event.kind == "progress" and event.step in self._tasks:
            self._progress.update(
                self._tasks[event.step],
                completed=event.done,
                total=event.total or None,
                remaining=""
                if event.remaining_s is None
                else f"{time_text(event.remaining_s)} left",
            )
        elif event.kind != "skip":
            self._end(event)

    def _end(self, event: BuildEvent) -> None:
        if event.kind in ("done", "failed") and event.step in self._tasks:
            self._progress.remove_task(self._tasks.pop(event.step))
        self._progress.console.print(_event_line(event), markup=False, highlight=False)


class _LineDisplay:
    """Print plain lines: start and end of each step, and its progress every 30 s."""

    def __init__(self) -> None:
        self._printed_at: dict[str, float] = {}

    def __call__(self, event: BuildEvent) -> None:
        if event.kind == "skip":
            return
        if event.kind == "progress":
            now = time.monotonic()
            if now - self._printed_at.get(event.step, -_PROGRESS_INTERVAL_S) < _PROGRESS_INTERVAL_S:
                return
            self._printed_at[event.step] = now
        print_message(_event_line(event))


def _event_line(event: BuildEvent) -> str:
    name = event.step
    if event.kind == "start":
        text = f"{name}: {event.text}"
    elif event.kind == "progress":
        count = f"{event.done}/{event.total}" if event.total else f"{event.done} done"
        text = f"{name}: {count}, {time_text(event.elapsed_s)}"
        if event.remaining_s is not None:
            text += f", about {time_text(event.remaining_s)} left"
    elif event.kind == "done":
        text = f"{name}: done in {time_text(event.elapsed_s)}"
    elif event.kind == "failed":
        text = f"{name}: failed after {time_text(event.elapsed_s)}"
    else:
        text = f"{name}: {event.text}" if name else event.text
    return printable(text)
