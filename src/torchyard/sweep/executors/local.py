"""Run cells on this machine, timed one at a time so that they do not disturb each other.

Each cell is a separate process, which ends with the driver. Cells are measured in passes: a cell
waits at its gate (`sweep/cell_gate.py`) after each launch, without worker processes, and
`LaunchOrder` chooses the next launch over all cells. Up to `at_most` launches are in progress at a
time: they start, compile and check accuracy concurrently and take turns for timing
(`process/timing_turn.py`), if possible on separate cores. When the time budget ends, launches in
progress are stopped, and all cells end with their finished launches.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.cpu_lists import cpu_list
from torchyard.core.study import Scalar
from torchyard.errors import StepFailed, UsageError
from torchyard.machine.system.core_reservation import CoreReservation, reserve_cores
from torchyard.process.timing_turn import (
    DRIVER_VARIABLE,
    FIRST_TURN_VARIABLE,
    RESERVED_VARIABLE,
    TURN_VARIABLE,
    first_turn,
)
from torchyard.process.tree import sweep_orphans
from torchyard.sweep.cell_gate import (
    FINISH,
    GATE_VARIABLE,
    GO,
    STOP_SIGNAL,
    CellReport,
    DriverGate,
)
from torchyard.sweep.executors.interface import Ended, Job
from torchyard.sweep.launch_order import LaunchOrder
from torchyard.sweep.model import LOCAL_OPTIONS, SweepPlan

STOP_TIMEOUT_S: Final = 30.0
"""Time for a cell to save its measurements after an interrupt, before it is killed."""
MOST_ALIVE: Final = 128
"""Processes of cells at a time. A waiting one holds about 30 MiB and no worker process; cells beyond
this number start when others have ended."""
NO_LAUNCH: Final = "no launch: the time budget of the sweep was used up"
ROOM_FACTOR: Final = 1.5
"""Safety factor of the time that is kept for the first launches of cells beyond `MOST_ALIVE`."""
ENDING_S: Final = 3.0
ENDING_CELL_S: Final = 0.1
"""Time reserved at the end of the budget for the final analyses: fixed, and per waiting cell."""


@dataclass(kw_only=True)
class _Running:
    """The process of a cell."""

    process: subprocess.Popen[bytes]
    gate: DriverGate
    ended: int | None
    """Descriptor that becomes readable when the process ends; None where there is none."""
    granted_s: float | None
    """Start of the launch in progress; None while it waits or ends."""
    busy_s: float = 0.0
    """Duration of earlier launches."""
    has_asked: bool = False
    stopped: bool = False

    @property
    def waits(self) -> bool:
        """Whether it waits for its next launch."""
        return self.gate.report is not None and not self.stopped

    def busy_until(self, now_s: float) -> float:
        """Return the time in launches so far."""
        return self.busy_s + (0.0 if self.granted_s is None else now_s - self.granted_s)

    def close(self) -> None:
        """Close all descriptors."""
        self.gate.close()
        if self.ended is not None:
            os.close(self.ended)


def read_at_most(options: Mapping[str, Scalar]) -> int:
    """Return the number of concurrent cells; raise UsageError for unknown options."""
    others = ", ".join(name for name in options if name not in LOCAL_OPTIONS)
    if others:
        raise UsageError(
            f"the local executor does not support {others}",
            why=f"its options are {' and '.join(LOCAL_OPTIONS)}",
            hint="use --executor slurm, or remove these options",
        )
    text = str(options.get("at-most", 1))
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(
            f"at-most: {text!r} is not a positive number of cells", hint="use --at-most 4"
        )
    return int(text)


def read_reserved(options: Mapping[str, Scalar]) -> int | None:
    """Return the requested number of reserved cores; None: the default."""
    if "reserve-cores" not in options:
        return None
    text = str(options["reserve-cores"])
    if not text.isdecimal():
        raise UsageError(
            f"reserve-cores: {text!r} is not a number of CPUs", hint="use --reserve-cores 4, or 0"
        )
    return int(text)


def reservation_of(plan: SweepPlan) -> CoreReservation:
    """Return the cores that a local sweep reserves for timing; raise UsageError if it cannot."""
    options = dict(plan.executor.options)
    return reserve_cores(
        (cell.study for cell in plan.cells),
        at_most=read_at_most(options),
        requested=read_reserved(options),
    )


class LocalExecutor:
    """Runs submitted cells, launch by launch."""

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        log: Callable[[str], Path],
        *,
        limit_s: float | None = None,
        at_most: int = 1,
        turn_folder: Path | None = None,
        reserved: Sequence[int] = (),
        order: LaunchOrder | None = None,
        deadline_s: float = math.inf,
        most_alive: int = MOST_ALIVE,
    ) -> None:
        """`command` and `log` return the command and the log file of a cell.

        Up to `at_most` launches run concurrently and take turns through `turn_folder`. `reserved` are the
        CPUs of the timed cell; without any, the others are paused while one is timed. The time limit
        is that of all launches of a cell together, and multiplied by `at_most`, because a cell may
        wait for the others most of the time. `deadline_s` is the end of the time budget
        (`time.monotonic`).
        """
        self._command = command
        self._log = log
        self._limit_s = None if limit_s is None else limit_s * at_most
        self._at_most = at_most
        self._turn_folder = turn_folder.absolute() if turn_folder and at_most > 1 else None
        self._reserved = tuple(reserved)
        self._order = LaunchOrder({}) if order is None else order
        self._deadline_s = deadline_s
        self._most_alive = max(at_most, most_alive)
        self._queue: dict[str, None] = {}
        self._running: dict[str, _Running] = {}
        self.out_of_time = False
        """Whether the time budget ended before every cell was decided."""

    def submit(self, cells: Sequence[str]) -> None:
        """Add cells to the queue."""
        for cell in cells:
            self._order.forget(cell)
            self._queue[cell] = None

    def poll(self) -> tuple[list[Job], list[Ended]]:
        """Return queued, running and ended cells; start the next launches."""
        ended = self._collect_ended()
        self._read_reports()
        while self._in_progress() < self._at_most and self._remaining_s() > 0.0:
            if not self._start_next():
                break
        is_over = self._remaining_s() <= 0.0 or not self._in_progress()
        if self._deadline_s < math.inf and is_over and (self._queue or self._running):
            ended += self._end_all()
        host = socket.gethostname()
        running = [
            Job(cell=cell, state="paused" if one.waits else "running", place=host)
            for cell, one in self._running.items()
        ]
        return [*running, *(Job(cell=cell, state="queued") for cell in self._queue)], ended

    def wait(self, pause_s: float) -> None:
        """Wait until a cell waits for its next launch or ends, at most `pause_s`."""
        poll = select.poll()
        for one in self._running.values():
            if not one.waits and not one.gate.closed:
                poll.register(one.gate, select.POLLIN)
            if one.ended is not None:
                poll.register(one.ended, select.POLLIN)
        if self._remaining_s() > 0.0:
            pause_s = min(pause_s, self._remaining_s())
        poll.poll(1000.0 * pause_s)

    def cancel(self) -> None:
        """End the running cells and clear the queue."""
        self._queue.clear()
        for one in self._running.values():
            one.process.send_signal(signal.SIGINT)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for one in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, deadline_s - time.monotonic()))
            _kill(one.process)
            one.close()
        self._running.clear()

    def detach(self) -> str:
        """Cancel everything: local cells do not run without a driver."""
        many = len(self._running) > 1
        self.cancel()
        if many:
            return "the running cells were stopped and will be measured again"
        return "the running cell was stopped and will be measured again"

    def _in_progress(self) -> int:
        """Return the number of cells with a launch, or with their final analysis, in progress."""
        return sum(one.granted_s is not None or one.stopped for one in self._running.values())

    def _remaining_s(self) -> float:
        """Return the time for launches until the end of the budget."""
        ending_s = ENDING_S + ENDING_CELL_S * len(self._running)
        return self._deadline_s - ending_s - time.monotonic()

    def _read_reports(self) -> None:
        """Read which cells have finished a launch; the first launch of a new cell has begun."""
        now_s = time.monotonic()
        for cell, one in self._running.items():
            if one.granted_s is None or not one.gate.read():
                continue
            if not one.has_asked:
                one.has_asked = True
                one.gate.answer(GO)
                continue
            self._order.record(cell, now_s - one.granted_s)
            one.busy_s = one.busy_until(now_s)
            one.granted_s = None

    def _start_next(self) -> bool:
        """Start the next launch; return False if there is none, or none that fits."""
        remaining_s = self._remaining_s()
        reports = {
            cell: one.gate.report
            for cell, one in self._running.items()
            if one.waits and one.gate.report is not None
        }
        if self._queue and len(self._running) >= self._most_alive:
            self._make_room(reports, remaining_s)
        if self._queue and len(self._running) < self._most_alive:
            cell = self._order.next_fresh(self._queue, remaining_s=remaining_s)
            if cell is not None:
                if not self._start(cell):
                    return False
                del self._queue[cell]
                return True
        cell = self._order.next_waiting(reports, remaining_s=remaining_s)
        if cell is None:
            return False
        one = self._running[cell]
        one.granted_s = time.monotonic()
        one.gate.answer(GO)
        return True

    def _make_room(self, reports: dict[str, CellReport], remaining_s: float) -> None:
        """End the least promising cell if the time only suffices for the first launches of others."""
        needed_s = math.fsum(map(self._order.first_launch_s, self._queue)) / self._at_most
        # The others start only after the final analysis of the cell that ends.
        is_short = ROOM_FACTOR * needed_s + ENDING_S >= remaining_s
        cell = self._order.least_promising(reports)
        if is_short and cell is not None:
            self._finish(self._running[cell])
            del reports[cell]

    def _finish(self, one: _Running) -> None:
        one.stopped = True
        one.gate.answer(FINISH)

    def _end_all(self) -> list[Ended]:
        """End all cells with their finished launches; return those that have none."""
        self.out_of_time = True
        for one in self._running.values():
            if one.waits:
                self._finish(one)
            elif not one.stopped and one.granted_s is not None:
                one.stopped = True
                one.granted_s = None
                with suppress(ProcessLookupError):
                    one.process.send_signal(STOP_SIGNAL)
                one.gate.answer(FINISH)  # it may be about to wait
        dropped = [Ended(cell=cell, outcome="cancelled", why=NO_LAUNCH) for cell in self._queue]
        self._queue.clear()
        return dropped

    def _start(self, cell: str) -> bool:
        """Start a cell; return False while others are timed, if a start would disturb them."""
        variables, turn = {DRIVER_VARIABLE: str(os.getpid())}, None
        if self._turn_folder is not None and self._reserved:
            variables[TURN_VARIABLE] = str(self._turn_folder)
            variables[RESERVED_VARIABLE] = cpu_list(self._reserved)
        elif self._turn_folder is not None:
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
        gate = DriverGate()
        inherited = gate.cell_end.fileno()
        try:
            with path.open("ab") as log:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Only the driver receives Ctrl-C; it then interrupts the cell.
                    start_new_session=True,
                    env={**os.environ, **variables, GATE_VARIABLE: str(inherited)},
                    pass_fds=(*files, inherited),
                )
        except OSError as error:
            gate.close()
            raise StepFailed(
                f"cell {cell} could not be started", why=str(error), log=str(path)
            ) from error
        gate.cell_end.close()
        self._running[cell] = _Running(
            process=process,
            gate=gate,
            ended=_end_descriptor(process.pid),
            granted_s=time.monotonic(),
        )

    def _collect_ended(self) -> list[Ended]:
        ended = []
        now_s = time.monotonic()
        for cell, one in list(self._running.items()):
            code = one.process.poll()
            if code is not None:
                ended.append(_ended(cell, code, stopped=one.stopped))
            elif self._limit_s is not None and one.busy_until(now_s) >= self._limit_s:
                _kill(one.process)
                why = f"timed out after {self._limit_s:g} s"
                ended.append(Ended(cell=cell, outcome="time-limit", why=why))
            elif self.out_of_time and now_s > self._deadline_s + STOP_TIMEOUT_S:
                _kill(one.process)
                why = f"did not end within {STOP_TIMEOUT_S:g} s of the time budget of the sweep"
                ended.append(Ended(cell=cell, outcome="cancelled", why=why))
            else:
                continue
            one.close()
            del self._running[cell]
            if (
                one.process.returncode < 0
            ):  # killed: what its workers started may be left, even stopped
                sweep_orphans()
        return ended


def _end_descriptor(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group; its workers end with it (`process/trampoline.py`)."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ended(cell: str, code: int, *, stopped: bool) -> Ended:
    if code == 0:
        return Ended(cell=cell, outcome="finished")
    if stopped and code == -STOP_SIGNAL:  # before it could handle the signal
        return Ended(cell=cell, outcome="cancelled", why=NO_LAUNCH)
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
