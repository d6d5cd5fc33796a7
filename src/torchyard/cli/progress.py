"""Live progress of a bench run on stderr: a bar on a terminal, plain lines in a log.

Silent with `--quiet`. Listens to events only. Keeps the comparisons received so far, so that they
can be shown after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchyard.cli.output import printable, talk
from torchyard.core.comparison import Comparison
from torchyard.core.events import Event, Listener

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Heard", "show_progress"]

_LINE_PAUSE_S = 10.0
"""Between two lines of a log about launches and looks, which can come many times a second."""
_ALWAYS = ("run", "workload", "comparison", "warning")


class Heard:
    """The comparisons that were reported so far; a later one replaces an earlier of the same."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Comparison] = {}

    @property
    def comparisons(self) -> list[Comparison]:
        """In the order they were first made."""
        return list(self._found.values())

    def listen(self, event: Event) -> None:
        """Keep the event's comparison, if it has one."""
        if event.comparison is not None:
            made = event.comparison
            self._found[(made.workload.label, made.baseline, made.candidate)] = made


@contextmanager
def show_progress(heard: Heard, *, quiet: bool) -> Iterator[Listener]:
    """A listener that shows events while the block runs."""
    if quiet:
        yield heard.listen
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar() as progress:
            yield _on_bar(heard, progress)
    else:
        lines = _Lines(heard)
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
        TimeRemainingColumn,
    )

    return Progress(
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )


def _on_bar(heard: Heard, progress: Progress) -> Listener:
    task = progress.add_task("starting", total=1.0)

    def listen(event: Event) -> None:
        heard.listen(event)
        text = printable(_say(event))
        if event.kind in ("comparison", "warning"):
            progress.console.print(text, markup=False, highlight=False)
            progress.update(task, completed=event.fraction)
        else:
            progress.update(task, description=text, completed=event.fraction)

    return listen


class _Lines:
    """Events as lines of a log: not too many, and the last one is always told.

    What comes too soon after another line waits; what is newer by then takes its place. So the log
    says what is being done even when that takes long.
    """

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._started = self._last = time.monotonic()
        self._fraction = 0.0
        self._lock = threading.Lock()
        self._waiting = ""
        self._timer: threading.Timer | None = None

    def listen(self, event: Event) -> None:
        """Tell the event, now or a little later."""
        self._heard.listen(event)
        with self._lock:
            self._fraction = event.fraction if event.fraction is not None else self._fraction
            now = time.monotonic()
            minutes, seconds = divmod(int(now - self._started), 60)
            line = f"[{self._fraction:4.0%} {minutes:3d}:{seconds:02d}] {_say(event)}"
            left_s = self._last + _LINE_PAUSE_S - now
            if event.kind in _ALWAYS or left_s <= 0:
                self._tell(line)
                return
            self._waiting = line
            if self._timer is None:
                self._timer = threading.Timer(left_s, self._tell_waiting)
                self._timer.daemon = True
                self._timer.start()

    def end(self) -> None:
        """Nothing is told any more."""
        with self._lock:
            self._forget_waiting()

    def _tell(self, line: str) -> None:
        self._forget_waiting()
        self._last = time.monotonic()
        talk(line)

    def _tell_waiting(self) -> None:
        with self._lock:
            if self._waiting:
                self._tell(self._waiting)

    def _forget_waiting(self) -> None:
        self._waiting = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _say(event: Event) -> str:
    mark = "warning: " if event.kind == "warning" else ""
    if event.workload and event.workload not in event.text:
        return f"{mark}{event.workload}: {event.text}"
    return mark + event.text
