"""Turn-taking between cells on one machine: they prepare side by side and are timed one at a time.

Starting processes, compiling and checking take most of a short comparison, and one core each. Cells
may do that side by side, but nothing else may run while one of them is timed. Two locked files in a
shared folder ensure this:

machine   held shared while preparing, exclusively while timing
wanted    held shared by every cell that waits to be timed or is being timed. A cell that is about
          to prepare waits until no cell holds it: cells that are ready are timed first, so that
          as many as possible can then prepare together.

A cell that prepares stops its workers (SIGSTOP) and gives up `machine` as soon as another one waits
to be timed, and continues after it: a long compilation does not delay the timing of others.

The kernel releases the locks when a process ends for any reason. A process that is started while
others are active receives its first turn from its parent (`first_turn`), so that even its start
does not overlap the timing of another.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

DRIVER_VARIABLE: Final = "TORCHYARD_DRIVER"
"""The driver process; a cell's process ends when it does."""
TURN_VARIABLE: Final = "TORCHYARD_TURN"
"""Directory of the lock files, set when cells share the machine."""
FIRST_TURN_VARIABLE: Final = "TORCHYARD_FIRST_TURN"
"""Descriptor of the locked file that holds the first turn of a process."""
_POLL_S: Final = 0.02


def first_turn(folder: Path) -> int | None:
    """Take a turn to prepare for a process that is about to be started; None while there is none.

    Returns a file descriptor, to be inherited by the process and closed in this one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting, machine = _opened(folder / "wanted.lock"), _opened(folder / "machine.lock")
    try:
        fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(machine, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(machine)
        return None
    finally:
        os.close(waiting)
    return machine


class TimingTurn:
    """The turns of one process: enter to prepare, call `alone` before timing and `timed` after it, exit when done.

    Without a folder the process has the machine to itself and never waits.
    """

    def __init__(self, folder: Path | None = None, *, first: int | None = None) -> None:
        """`first` is the descriptor that `first_turn` returned in the parent process."""
        self._machine: int | None = None
        self._waiting: int | None = None
        self._has_turn = folder is not None and first is not None
        self._end_of_preparation = threading.Event()
        self._yielding: threading.Thread | None = None
        self.waited_s = 0.0
        """Total time so far in which this process waited or its workers were paused."""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._machine = _opened(folder / "machine.lock") if first is None else first
            self._waiting = _opened(folder / "wanted.lock")

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the turn that the executor set up in the environment."""
        folder = environment.get(TURN_VARIABLE, "")
        number = environment.get(FIRST_TURN_VARIABLE, "")
        first = int(number) if folder and number.isdecimal() else None
        if first is not None:
            os.set_inheritable(first, False)
        return cls(Path(folder) if folder else None, first=first)

    def __enter__(self) -> Self:
        if self._machine is not None and self._waiting is not None:
            if not self._has_turn:
                self._wait_to_prepare(self._machine, self._waiting)
            self._has_turn = False
            self._start_yielding(self._machine, self._waiting)
        return self

    def alone(self) -> None:
        """Wait until no other cell prepares or is timed, and exclude them until the turn ends."""
        if self._machine is not None and self._waiting is not None:
            self._end_preparation()
            began_s = time.monotonic()
            fcntl.flock(self._machine, fcntl.LOCK_UN)
            fcntl.flock(self._waiting, fcntl.LOCK_SH)
            fcntl.flock(self._machine, fcntl.LOCK_EX)
            self.waited_s += time.monotonic() - began_s

    def timed(self) -> None:
        """Let others prepare and be timed again; this process continues with work that is not timed."""
        if self._machine is not None and self._waiting is not None:
            fcntl.flock(self._machine, fcntl.LOCK_SH)
            fcntl.flock(self._waiting, fcntl.LOCK_UN)
            self._start_yielding(self._machine, self._waiting)

    def __exit__(self, *_: object) -> None:
        self._end_preparation()
        for lock in (self._machine, self._waiting):
            if lock is not None:
                fcntl.flock(lock, fcntl.LOCK_UN)

    def _wait_to_prepare(self, machine: int, waiting: int) -> None:
        began_s = time.monotonic()
        fcntl.flock(waiting, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_SH)
        fcntl.flock(waiting, fcntl.LOCK_UN)
        self.waited_s += time.monotonic() - began_s

    def _start_yielding(self, machine: int, waiting: int) -> None:
        self._end_of_preparation.clear()
        self._yielding = threading.Thread(
            target=self._yield_to_others, args=(machine, waiting), daemon=True
        )
        self._yielding.start()

    def _yield_to_others(self, machine: int, waiting: int) -> None:
        """Pause the workers of this process whenever another cell waits to be timed."""
        from torchyard.process.worker_process import all_paused  # others need only the constants

        ended = self._end_of_preparation
        while not ended.wait(_POLL_S):
            if _nobody_holds(waiting):
                continue
            began_s = time.monotonic()
            with all_paused():
                fcntl.flock(machine, fcntl.LOCK_UN)
                while not ended.wait(_POLL_S) and not _nobody_holds(waiting):
                    pass
                if not ended.is_set():
                    fcntl.flock(machine, fcntl.LOCK_SH)
            self.waited_s += time.monotonic() - began_s

    def _end_preparation(self) -> None:
        if self._yielding is not None:
            self._end_of_preparation.set()
            self._yielding.join()
            self._yielding = None


def _nobody_holds(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
