"""Cells on this machine: one at a time, because two that measure would disturb each other.

Each cell is a process of its own, so that whatever it does to itself leaves the sweep alone. It ends
with the driver. Knows commands and how processes end, and nothing of what they measure.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from torchyard.errors import StepFailed
from torchyard.executors.executor import Ended, Job

__all__ = ["DRIVER_VARIABLE", "LocalExecutor"]

DRIVER_VARIABLE: Final = "TORCHYARD_DRIVER"
"""Tells a cell's process whose end is its own."""
END_S: Final = 30.0
"""For a cell to write what it has after an interrupt, before it is killed."""


class LocalExecutor:
    """Runs what is handed in, first to last."""

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        log: Callable[[str], Path],
        *,
        limit_s: float | None = None,
    ) -> None:
        """`command` and `log` say what runs for a cell and where it prints."""
        self._command = command
        self._log = log
        self._limit_s = limit_s
        self._waiting: deque[str] = deque()
        self._running: tuple[str, subprocess.Popen[bytes]] | None = None
        self._began_s = 0.0

    def submit(self, cells: Sequence[str]) -> None:
        """Put cells at the end of the queue."""
        self._waiting.extend(cells)

    def poll(self) -> tuple[list[Job], list[Ended]]:
        """What waits and runs, and what has ended; starts the next cell."""
        ended = self._reap()
        if self._running is None and self._waiting:
            self._start(self._waiting.popleft())
        jobs = [Job(cell=cell, state="queued") for cell in self._waiting]
        if self._running is not None:
            jobs.insert(0, Job(cell=self._running[0], state="running", place=socket.gethostname()))
        return jobs, ended

    def cancel(self) -> None:
        """End the running cell, forget the others."""
        self._waiting.clear()
        if self._running is not None:
            _, process = self._running
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            _kill(process)
            self._running = None

    def leave(self) -> str:
        """Nothing goes on here without a driver."""
        self.cancel()
        return "the running cell was ended, and will be measured anew"

    def _start(self, cell: str) -> None:
        path = self._log(cell)
        argv = list(self._command(cell))
        try:
            with path.open("ab") as log:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C is for the driver, which tells the cell in its own way.
                    start_new_session=True,
                    env={**os.environ, DRIVER_VARIABLE: str(os.getpid())},
                )
        except OSError as error:
            raise StepFailed(
                f"the cell {cell} cannot be started", why=str(error), log=str(path)
            ) from error
        self._running = (cell, process)
        self._began_s = time.monotonic()

    def _reap(self) -> list[Ended]:
        if self._running is None:
            return []
        cell, process = self._running
        code = process.poll()
        if code is None:
            if self._limit_s is None or time.monotonic() - self._began_s < self._limit_s:
                return []
            _kill(process)
            self._running = None
            why = f"took longer than {self._limit_s:g} s"
            return [Ended(cell=cell, outcome="time-limit", why=why)]
        self._running = None
        return [_ended(cell, code)]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With its group; its workers end with it by themselves (`process/trampoline.py`)."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ended(cell: str, code: int) -> Ended:
    if code == 0:
        return Ended(cell=cell, outcome="finished")
    if code == 128 + signal.SIGINT:
        return Ended(cell=cell, outcome="interrupted", why="interrupted")
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        said = "killed by the kernel or by somebody" if code == -signal.SIGKILL else "crashed"
        return Ended(cell=cell, outcome="died", why=f"its process was {said} ({name})")
    return Ended(cell=cell, outcome="died", why=f"its process ended with exit code {code}")
