"""Run cells on this machine, timed one at a time so that they do not disturb each other.

Each cell is a separate process, which ends with the driver. Several cells may run concurrently: they
start, compile and check accuracy at the same time and take turns for timing
(`process/timing_turn.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.study import Scalar
from torchyard.errors import StepFailed, UsageError
from torchyard.process.timing_turn import (
    DRIVER_VARIABLE,
    FIRST_TURN_VARIABLE,
    TURN_VARIABLE,
    first_turn,
)
from torchyard.sweep.executors.interface import Ended, Job

STOP_TIMEOUT_S: Final = 30.0
"""Time for a cell to save its measurements after an interrupt, before it is killed."""


@dataclass(frozen=True, kw_only=True)
class _Running:
    process: subprocess.Popen[bytes]
    began_s: float


def read_at_most(options: Mapping[str, Scalar]) -> int:
    """Return the number of concurrent cells; raise UsageError for any other option."""
    others = ", ".join(name for name in options if name != "at-most")
    if others:
        raise UsageError(
            f"the local executor does not support {others}",
            why="at-most is its only option",
            hint="use --executor slurm, or remove these options",
        )
    text = str(options.get("at-most", 1))
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(
            f"at-most: {text!r} is not a positive number of cells", hint="use --at-most 4"
        )
    return int(text)


class LocalExecutor:
    """Runs submitted cells in order."""

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        log: Callable[[str], Path],
        *,
        limit_s: float | None = None,
        at_most: int = 1,
        turn_folder: Path | None = None,
    ) -> None:
        """`command` and `log` return the command and the log file of a cell.

        Up to `at_most` cells run concurrently and take turns through `turn_folder`. The time limit is
        multiplied by `at_most`, because a cell may wait for the others most of the time.
        """
        self._command = command
        self._log = log
        self._limit_s = None if limit_s is None else limit_s * at_most
        self._at_most = at_most
        self._turn_folder = turn_folder.absolute() if turn_folder and at_most > 1 else None
        self._waiting: deque[str] = deque()
        self._running: dict[str, _Running] = {}

    def submit(self, cells: Sequence[str]) -> None:
        """Append cells to the queue."""
        self._waiting.extend(cells)

    def poll(self) -> tuple[list[Job], list[Ended]]:
        """Return queued, running and ended cells; start the next cells."""
        ended = self._collect_ended()
        while len(self._running) < self._at_most and self._waiting:
            if not self._start(self._waiting[0]):
                break
            self._waiting.popleft()
        host = socket.gethostname()
        running = [Job(cell=cell, state="running", place=host) for cell in self._running]
        return [*running, *(Job(cell=cell, state="queued") for cell in self._waiting)], ended

    def cancel(self) -> None:
        """End the running cells and clear the queue."""
        self._waiting.clear()
        for one in self._running.values():
            one.process.send_signal(signal.SIGINT)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for one in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, deadline_s - time.monotonic()))
            _kill(one.process)
        self._running.clear()

    def detach(self) -> str:
        """Cancel everything: local cells do not run without a driver."""
        many = len(self._running) > 1
        self.cancel()
        if many:
            return "the running cells were stopped and will be measured again"
        return "the running cell was stopped and will be measured again"

    def _start(self, cell: str) -> bool:
        """Start a cell; return False while others are timed, which a start would disturb."""
        variables, turn = {DRIVER_VARIABLE: str(os.getpid())}, None
        if self._turn_folder is not None:
            turn = first_turn(self._turn_folder)
            if turn is None:
                return False
            variables[TURN_VARIABLE] = str(self._turn_folder)
            variables[FIRST_TURN_VARIABLE] = str(turn)
        try:
            self._start_process(cell, variables, () if turn is None else (turn,))
        finally:
            if turn is not None:
                os.close(turn)
        return True

    def _start_process(self, cell: str, variables: Mapping[str, str], files: Sequence[int]) -> None:
        path = self._log(cell)
        argv = list(self._command(cell))
        try:
            with path.open("ab") as log:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C goes to the driver only, which then interrupts the cell.
                    start_new_session=True,
                    env={**os.environ, **variables},
                    pass_fds=files,
                )
        except OSError as error:
            raise StepFailed(
                f"cell {cell} could not be started", why=str(error), log=str(path)
            ) from error
        self._running[cell] = _Running(process=process, began_s=time.monotonic())

    def _collect_ended(self) -> list[Ended]:
        ended = []
        for cell, one in list(self._running.items()):
            code = one.process.poll()
            if code is not None:
                ended.append(_ended(cell, code))
            elif self._limit_s is not None and time.monotonic() - one.began_s >= self._limit_s:
                _kill(one.process)
                why = f"timed out after {self._limit_s:g} s"
                ended.append(Ended(cell=cell, outcome="time-limit", why=why))
            else:
                continue
            del self._running[cell]
        return ended


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group; its workers end with it (`process/trampoline.py`)."""
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
        verb = "was killed" if code == -signal.SIGKILL else "crashed"
        return Ended(cell=cell, outcome="died", why=f"its process {verb} ({name})")
    return Ended(cell=cell, outcome="died", why=f"its process exited with code {code}")
