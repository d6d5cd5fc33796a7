"""Run cells on this machine, timed one at a time so that they do not disturb each other.

Each cell is a process of its own, so that nothing it does to itself affects the sweep. It ends with
the driver. Several may be active: they start, compile and check side by side and take turns for
timing (`process/timing_turn.py`).
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

__all__ = ["LocalExecutor", "read_at_most"]

END_S: Final = 30.0
"""For a cell to write what it has after an interrupt, before it is killed."""


@dataclass(frozen=True, kw_only=True)
class _Running:
    process: subprocess.Popen[bytes]
    began_s: float


def read_at_most(options: Mapping[str, Scalar]) -> int:
    """How many cells may be under way; raises UsageError for whatever else was said."""
    others = ", ".join(name for name in options if name != "at-most")
    if others:
        raise UsageError(
            f"the executor 'local' has no option but at-most, and got {others}",
            hint="say --executor slurm, or leave them out",
        )
    said = str(options.get("at-most", 1))
    if not said.isdecimal() or int(said) < 1:
        raise UsageError(
            f"at-most is {said!r}, and should be a number of cells", hint="--at-most 4"
        )
    return int(said)


class LocalExecutor:
    """Runs what is handed in, first to last."""

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        log: Callable[[str], Path],
        *,
        limit_s: float | None = None,
        at_most: int = 1,
        turn_folder: Path | None = None,
    ) -> None:
        """`command` and `log` say what runs for a cell and where it prints.

        `at_most` cells are under way at once, whose turns are kept in `turn_folder`. The limit of each
        is as many times longer: most of that time it may wait for the others.
        """
        self._command = command
        self._log = log
        self._limit_s = None if limit_s is None else limit_s * at_most
        self._at_most = at_most
        self._turn_folder = turn_folder.absolute() if turn_folder and at_most > 1 else None
        self._waiting: deque[str] = deque()
        self._running: dict[str, _Running] = {}

    def submit(self, cells: Sequence[str]) -> None:
        """Put cells at the end of the queue."""
        self._waiting.extend(cells)

    def poll(self) -> tuple[list[Job], list[Ended]]:
        """What waits and runs, and what has ended; starts the next cells."""
        ended = self._reap()
        while len(self._running) < self._at_most and self._waiting:
            if not self._start(self._waiting[0]):
                break
            self._waiting.popleft()
        here = socket.gethostname()
        running = [Job(cell=cell, state="running", place=here) for cell in self._running]
        return [*running, *(Job(cell=cell, state="queued") for cell in self._waiting)], ended

    def cancel(self) -> None:
        """End the running cells, forget the others."""
        self._waiting.clear()
        for one in self._running.values():
            one.process.send_signal(signal.SIGINT)
        deadline_s = time.monotonic() + END_S
        for one in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, deadline_s - time.monotonic()))
            _kill(one.process)
        self._running.clear()

    def leave(self) -> str:
        """Nothing goes on here without a driver."""
        many = len(self._running) > 1
        self.cancel()
        if many:
            return "the running cells were ended, and will be measured anew"
        return "the running cell was ended, and will be measured anew"

    def _start(self, cell: str) -> bool:
        """False while others are timed: even a start would disturb them."""
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
                    # Ctrl-C is for the driver, which tells the cell in its own way.
                    start_new_session=True,
                    env={**os.environ, **variables},
                    pass_fds=files,
                )
        except OSError as error:
            raise StepFailed(
                f"the cell {cell} cannot be started", why=str(error), log=str(path)
            ) from error
        self._running[cell] = _Running(process=process, began_s=time.monotonic())

    def _reap(self) -> list[Ended]:
        ended = []
        for cell, one in list(self._running.items()):
            code = one.process.poll()
            if code is not None:
                ended.append(_ended(cell, code))
            elif self._limit_s is not None and time.monotonic() - one.began_s >= self._limit_s:
                _kill(one.process)
                why = f"took longer than {self._limit_s:g} s"
                ended.append(Ended(cell=cell, outcome="time-limit", why=why))
            else:
                continue
            del self._running[cell]
        return ended


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
