"""Live progress of a bench run on stderr: a bar on a terminal, plain lines in a log.

Silent with `--quiet`. Keeps the comparisons received so far, so that they can be shown after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchyard.cli.output import print_message, printable
from torchyard.core.comparison import Comparison
from torchyard.core.events import Event, Listener

if TYPE_CHECKING:
    from rich.progress import Progress


_LINE_PAUSE_S = 10.0
"""Minimum time between two log lines about launches and interim analyses."""
_WIDE = 100
_ALWAYS = ("run", "workload", "comparison", "warning")


class ComparisonCollector:
    """Collects the comparisons of a run; a newer one replaces an older one of the same variants."""

    def __init__(self) -> None:
        self._comparisons: dict[tuple[str, str, str], Comparison] = {}

    @property
    def comparisons(self) -> list[Comparison]:
        """Return them in the order of their first report."""
        return list(self._comparisons.values())

    def listen(self, event: Event) -> None:
        """Store the comparison of the event, if it has one."""
        if event.comparison is not None:
            latest = event.comparison
            key = (latest.workload.label, latest.baseline, latest.candidate)
            self._comparisons[key] = latest


@contextmanager
def show_progress(collector: ComparisonCollector, *, quiet: bool) -> Iterator[Listener]:
    """Yield a listener that shows events while the block runs."""
    if quiet:
        yield collector.listen
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar() as progress:
            yield _on_bar(collector, progress)
    else:
        lines = _Lines(collector)
        try:
            yield lines.listen
        finally:
            lines.end()


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column

    console = Console(stderr=True)
    rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return Progress(
        BarColumn(bar_width=24 if console.width >= _WIDE else 8),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[remaining]}", markup=False),
        TextColumn("{task.description}", markup=False, table_column=rest),
        console=console,
        transient=True,
        expand=True,
    )


def _on_bar(collector: ComparisonCollector, progress: Progress) -> Listener:
    task = progress.add_task("starting", total=1.0, remaining="")

    def listen(event: Event) -> None:
        collector.listen(event)
        remaining = remaining_text(event)
        if event.kind == "comparison":
            text = printable(_event_text(event))
            progress.console.print(text, markup=False, highlight=False)
            progress.update(task, completed=event.fraction, remaining=remaining)
            return
        # Warnings are also notes of the table. The activity comes first: a narrow terminal truncates the rest.
        mark = "warning: " if event.kind == "warning" else ""
        text = printable(f"{mark}{event.text}" + (f" ({event.workload})" if event.workload else ""))
        progress.update(task, description=text, completed=event.fraction, remaining=remaining)

    return listen


class _Lines:
    """Events as log lines, rate-limited.

    A line shortly after another one is delayed, and replaced by a newer one, so that the log ends
    with the current activity.
    """

    def __init__(self, collector: ComparisonCollector) -> None:
        self._collector = collector
        self._started = self._last = time.monotonic()
        self._fraction = 0.0
        self._lock = threading.Lock()
        self._waiting = ""
        self._timer: threading.Timer | None = None

    def listen(self, event: Event) -> None:
        """Print the event, now or after the pause."""
        self._collector.listen(event)
        with self._lock:
            self._fraction = event.fraction if event.fraction is not None else self._fraction
            now = time.monotonic()
            minutes, seconds = divmod(int(now - self._started), 60)
            remaining = remaining_text(event)
            times = f"{minutes:3d}:{seconds:02d}{', ' if remaining else ''}{remaining}"
            line = f"[{self._fraction:4.0%} {times}] {_event_text(event)}"
            remaining_s = self._last + _LINE_PAUSE_S - now
            if event.kind in _ALWAYS or remaining_s <= 0:
                self._print(line)
                return
            self._waiting = line
            if self._timer is None:
                self._timer = threading.Timer(remaining_s, self._print_waiting)
                self._timer.daemon = True
                self._timer.start()

    def end(self) -> None:
        """Discard the delayed line."""
        with self._lock:
            self._discard_waiting()

    def _print(self, line: str) -> None:
        self._discard_waiting()
        self._last = time.monotonic()
        print_message(line)

    def _print_waiting(self) -> None:
        with self._lock:
            if self._waiting:
                self._print(self._waiting)

    def _discard_waiting(self) -> None:
        self._waiting = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def remaining_text(event: Event) -> str:
    """Return the expected remaining time, `about 0:40 left`; empty when unknown."""
    if event.remaining_s is None:
        return ""
    minutes, seconds = divmod(round(event.remaining_s), 60)
    return f"about {minutes}:{seconds:02d} left"


def _event_text(event: Event) -> str:
    mark = "warning: " if event.kind == "warning" else ""
    if event.workload and event.workload not in event.text:
        return f"{mark}{event.workload}: {event.text}"
    return mark + event.text
