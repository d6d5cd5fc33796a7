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

Where the machine has enough cores, some are reserved for timing instead (`ReservedCoresTurn`). All cells
prepare on the other cores, also while one of them is timed. Only workers that use the device are paused.

The kernel releases the locks when a process ends for any reason. A process that is started while
others are active receives its first turn from its parent (`first_turn`), so that even its start
does not overlap the timing of another.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from torchyard.core.cpu_lists import cpus_of_list
from torchyard.worker.device_turn import GATE, USERS, user_file

DRIVER_VARIABLE: Final = "TORCHYARD_DRIVER"
"""The driver process; a cell's process ends when it does."""
TURN_VARIABLE: Final = "TORCHYARD_TURN"
"""Directory of the lock files, set when cells share the machine."""
RESERVED_VARIABLE: Final = "TORCHYARD_RESERVED_CORES"
"""CPUs that are reserved for the timed cell, such as `12-15`; unset where others are paused instead."""
FIRST_TURN_VARIABLE: Final = "TORCHYARD_FIRST_TURN"
"""Descriptor of the locked file that holds the first turn of a process."""
_POLL_S: Final = 0.02
_BETWEEN_TURNS_S: Final = 0.03
_GRACE_S: Final = 0.25
"""Time in which a worker may finish a short use of the device before it is paused for a whole turn."""


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
        self._waited_s = 0.0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._machine = _opened(folder / "machine.lock") if first is None else first
            self._waiting = _opened(folder / "wanted.lock")

    reserved: tuple[int, ...] = ()
    """CPUs that are reserved for timing."""
    preparing: tuple[int, ...] = ()
    """CPUs on which the workers prepare, if some are reserved."""

    @property
    def waited_s(self) -> float:
        """Total time so far in which this process waited or its workers were paused."""
        return self._waited_s

    def device_users(self) -> int:
        """Return how many workers of other cells use the device now."""
        return 0

    @staticmethod
    def of_environment(environment: Mapping[str, str] = os.environ) -> TimingTurn:
        """Return the turn that the executor set up in the environment."""
        folder = environment.get(TURN_VARIABLE, "")
        reserved = environment.get(RESERVED_VARIABLE, "")
        if folder and reserved:
            return ReservedCoresTurn(Path(folder), cpus_of_list(reserved))
        number = environment.get(FIRST_TURN_VARIABLE, "")
        first = int(number) if folder and number.isdecimal() else None
        if first is not None:
            os.set_inheritable(first, False)
        return TimingTurn(Path(folder) if folder else None, first=first)

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
            self._waited_s += time.monotonic() - began_s

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
        self._waited_s += time.monotonic() - began_s

    def _start_yielding(self, machine: int, waiting: int) -> None:
        self._end_of_preparation.clear()
        self._yielding = threading.Thread(
            target=self._yield_to_others, args=(machine, waiting), daemon=True
        )
        self._yielding.start()

    def _yield_to_others(self, machine: int, waiting: int) -> None:
        """Pause the workers of this process whenever another cell waits to be timed."""
        from torchyard.process.worker_process import all_paused  # others need only the constants

        preparation_done = self._end_of_preparation
        while not preparation_done.wait(_POLL_S):
            if _nobody_holds(waiting):
                continue
            began_s = time.monotonic()
            with all_paused():
                fcntl.flock(machine, fcntl.LOCK_UN)
                while not preparation_done.wait(_POLL_S) and not _nobody_holds(waiting):
                    pass
                if not preparation_done.is_set():
                    fcntl.flock(machine, fcntl.LOCK_SH)
            self._waited_s += time.monotonic() - began_s

    def _end_preparation(self) -> None:
        if self._yielding is not None:
            self._end_of_preparation.set()
            self._yielding.join()
            self._yielding = None


class ReservedCoresTurn(TimingTurn):
    """Turns of a process that prepares on its own cores, and whose workers are timed on reserved ones.

    The gate (`worker/device_turn.py`) is held exclusively while timing. Workers do not begin to use the
    device then; those that do are paused by their controllers. Preparation on the CPU goes on.
    """

    def __init__(self, folder: Path, reserved: Sequence[int]) -> None:
        super().__init__()
        self._folder = folder.absolute()
        (self._folder / USERS).mkdir(parents=True, exist_ok=True)
        self._gate = _opened(self._folder / GATE)
        self.reserved = tuple(reserved)
        self.preparing = tuple(sorted(os.sched_getaffinity(0)))
        self._began_s = time.monotonic()

    @property
    def waited_s(self) -> float:
        """Total time so far in which this process waited or its busy workers were paused."""
        return self._waited_s + paused_s(self._began_s, math.inf)

    def device_users(self) -> int:
        """Return how many workers use the device now; none of the timed ones does by these rules."""
        return sum(map(self._uses_device_now, self._users()))

    def __enter__(self) -> Self:
        take_turns(self._folder)
        self._start_watching()
        return self

    def alone(self) -> None:
        """Wait until no other cell is timed or uses the device; move the workers to the reserved cores."""
        self._end_preparation()
        began_s = time.monotonic()
        # Released once, so that workers that wait at the gate pass it between two turns.
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        time.sleep(_BETWEEN_TURNS_S)
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        for pid in self._users():
            if not self._uses_device(pid):
                Path(user_file(str(self._folder), pid)).unlink(missing_ok=True)
        while self.device_users():
            time.sleep(_POLL_S / 4)
        self._waited_s += time.monotonic() - began_s
        take_turns(None)
        self._move(self.reserved)

    def timed(self) -> None:
        """Let others use the device and be timed again; the workers continue on the other cores."""
        self._move(self.preparing)
        take_turns(self._folder)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        self._start_watching()

    def __exit__(self, *_: object) -> None:
        self._end_preparation()
        take_turns(None)
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    @staticmethod
    def _move(cores: Sequence[int]) -> None:
        from torchyard.process.worker_process import move_workers

        move_workers(cores)

    def _start_watching(self) -> None:
        self._end_of_preparation.clear()
        self._yielding = threading.Thread(target=self._pause_device_users, daemon=True)
        self._yielding.start()

    def _pause_device_users(self) -> None:
        """Pause workers that use the device while another cell is timed, unless they soon stop using it."""
        from torchyard.process.worker_process import some_paused

        preparation_done = self._end_of_preparation
        held_since_s = math.inf
        while not preparation_done.wait(_POLL_S):
            if not self._gate_is_held():
                held_since_s = math.inf
                continue
            held_since_s = min(held_since_s, time.monotonic())
            if time.monotonic() - held_since_s < _GRACE_S:
                continue
            with some_paused(self._uses_device):
                while not preparation_done.wait(_POLL_S) and self._gate_is_held():
                    pass
            held_since_s = math.inf

    def _gate_is_held(self) -> bool:
        try:
            fcntl.flock(self._gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        return False

    def _users(self) -> list[int]:
        files = (self._folder / USERS).glob("*.lock")
        return [int(file.stem) for file in files if file.stem.isdecimal()]

    def _uses_device(self, pid: int) -> bool:
        try:
            lock = os.open(user_file(str(self._folder), pid), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _nobody_holds(lock)
        finally:
            os.close(lock)

    def _uses_device_now(self, pid: int) -> bool:
        """Whether a worker uses the device and is not paused."""
        from torchyard.process.tree import process_runs  # imports psutil

        return self._uses_device(pid) and process_runs(pid)


def _nobody_holds(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


_spans: list[tuple[float, float]] = []
_turn_folder = ""


def take_turns(folder: Path | None) -> None:
    """Make all workers take turns on the device in this folder; None: they may use it at any time."""
    global _turn_folder  # noqa: PLW0603  # of the process, like its workers
    _turn_folder = "" if folder is None else str(folder)


def turn_fields() -> dict[str, str]:
    """Return the fields of a request that make a worker take turns (`worker/device_turn.py`)."""
    return {"turn": _turn_folder} if _turn_folder else {}


def record_pause(start_s: float, end_s: float) -> None:
    """Record a pause."""
    _spans.append((start_s, end_s))


def record_waits(waits: object) -> None:
    """Record the waits that an answer of a worker reports; anything else in it is ignored."""
    for wait in waits if isinstance(waits, list) else ():
        match wait:
            case [int() | float() as start_s, int() | float() as end_s]:
                record_pause(float(start_s), float(end_s))


def pauses(start_s: float, end_s: float) -> list[tuple[float, float]]:
    """Return the pauses between these moments."""
    spans = [(max(start_s, start), min(end_s, end)) for start, end in _spans]
    return [(start, end) for start, end in spans if start < end]


def paused_s(start_s: float, end_s: float) -> float:
    """Return the duration of the pauses between these moments."""
    return sum(end - start for start, end in pauses(start_s, end_s))
