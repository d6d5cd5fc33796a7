"""Turn-taking between cells on one machine: they prepare side by side and are timed one at a time.

Starting processes, compiling and checking take most of a short comparison, and one core each. Cells
may do that side by side, but nothing else may run while one of them is timed. Two locked files in a
shared folder ensure this:

machine   held shared while preparing, exclusively while timing
wanted    held shared by every cell that waits to be timed or is being timed. A cell that is about
          to prepare waits until no cell holds it: cells that are ready are timed first, so that
          as many as possible can then prepare together.

The kernel releases the locks when a process ends for any reason. A process that is started while
others are active receives its first turn from its parent (`first_turn`), so that even its start
does not overlap the timing of another.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

__all__ = ["DRIVER_VARIABLE", "FIRST_TURN_VARIABLE", "TURN_VARIABLE", "TimingTurn", "first_turn"]

DRIVER_VARIABLE: Final = "TORCHYARD_DRIVER"
"""The driver process; a cell's process ends when it does."""
TURN_VARIABLE: Final = "TORCHYARD_TURN"
"""Directory of the lock files, set when cells share the machine."""
FIRST_TURN_VARIABLE: Final = "TORCHYARD_FIRST_TURN"
"""Descriptor of the locked file that holds the first turn of a process."""


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
    """The turns of one process: enter to prepare, call `alone` before timing, exit when done.

    Without a folder the process has the machine to itself and never waits.
    """

    def __init__(self, folder: Path | None = None, *, first: int | None = None) -> None:
        """`first` is the descriptor that `first_turn` returned in the parent process."""
        self._machine: int | None = None
        self._waiting: int | None = None
        self._has_turn = folder is not None and first is not None
        self.waited_s = 0.0
        """Total waiting time of this process so far."""
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
        if self._has_turn:
            self._has_turn = False
        elif self._machine is not None and self._waiting is not None:
            began_s = time.monotonic()
            fcntl.flock(self._waiting, fcntl.LOCK_EX)
            fcntl.flock(self._machine, fcntl.LOCK_SH)
            fcntl.flock(self._waiting, fcntl.LOCK_UN)
            self.waited_s += time.monotonic() - began_s
        return self

    def alone(self) -> None:
        """Wait until no other cell prepares or is timed, and exclude them until the turn ends."""
        if self._machine is not None and self._waiting is not None:
            began_s = time.monotonic()
            fcntl.flock(self._machine, fcntl.LOCK_UN)
            fcntl.flock(self._waiting, fcntl.LOCK_SH)
            fcntl.flock(self._machine, fcntl.LOCK_EX)
            self.waited_s += time.monotonic() - began_s

    def __exit__(self, *_: object) -> None:
        for lock in (self._machine, self._waiting):
            if lock is not None:
                fcntl.flock(lock, fcntl.LOCK_UN)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
