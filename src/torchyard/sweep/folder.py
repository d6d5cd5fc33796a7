"""The folder of a sweep: its plan, and the attempts and the state of each cell.

    sweep.json              the plan, written once
    cells/ID/attempt-N.json one attempt at a cell: when, where, and how it ended
    cells/ID/run-N/         its run, an ordinary run folder
    cells/ID/batch.json     the batch size found for the cell, where one is searched for
    logs/ID.log             output of the processes that ran the cell
    runs.json               the runs that finished cells were joined into
    driver.lock             held by the one process that drives the sweep

Processes on several machines write here at the same time, each to the cells that it runs. The
state of a sweep is derived from these files alone, so that a driver can exit and another one can
resume.

A process id is not valid in another PID namespace or on another host, for example in a restarted
container. The process that runs an attempt therefore holds an flock on the attempt's file, which the
kernel releases however the process ends, and touches the file every `HEARTBEAT_S`:

- Same host and PID namespace: the process is looked up.
- Anywhere else: the process is alive while the lock is held. When the lock is free, the file must
  also not have been touched for `LOST_S`, because some network file systems keep locks local to a host.

An attempt file appears under its name with its complete content.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torchyard.core.records import encode
from torchyard.errors import UsageError
from torchyard.files.safe_reading import LARGEST_ROWS_BYTES, read_json, unreadable_error
from torchyard.files.safe_writing import replace_json, to_json_text, write_error, write_errors
from torchyard.process.owner import is_alive, this_process
from torchyard.results.directory import create_folder, home_folder, utc_timestamp
from torchyard.results.plausibility import check_format, decode_stored
from torchyard.results.run_writer import ProgressTail
from torchyard.sweep.model import (
    SWEEP_FORMAT,
    Attempt,
    Cell,
    CellBatch,
    CellState,
    CellStatus,
    Outcome,
    SweepPlan,
)

PLAN_FILE: Final = "sweep.json"
RUNS_FILE: Final = "runs.json"
LOCK_FILE: Final = "driver.lock"
BATCH_FILE: Final = "batch.json"
CELLS_FOLDER: Final = "cells"
LOGS_FOLDER: Final = "logs"
MAX_INTERRUPTED: Final = 8
"""Interrupted attempts after which a cell is not retried: a cell that crashes the machine each time
must not be retried forever."""


def sweeps_home() -> Path:
    """Return the default parent folder of sweeps."""
    return home_folder() / "sweeps"


class SweepFolder:
    """The folder of one sweep."""

    def __init__(self, folder: Path, plan: SweepPlan) -> None:
        """Use `create` or `open` instead."""
        self.folder = folder
        self.plan = plan
        self._cells = {cell.id: cell for cell in plan.cells}
        self._tails: dict[Path, tuple[ProgressTail, dict[str, Any]]] = {}
        self._claims: dict[Path, AttemptClaim] = {}
        """Attempts that this process runs."""
        self._driving = False

    @classmethod
    def create(cls, folder: Path, plan: SweepPlan) -> SweepFolder:
        """Create a sweep in a new or empty folder."""
        folder = create_folder(folder, what="sweep", subfolders=(CELLS_FOLDER, LOGS_FOLDER))
        replace_json(folder / PLAN_FILE, encode(plan))
        return cls(folder, plan)

    @classmethod
    def open(cls, folder: Path) -> SweepFolder:
        """Open an existing sweep."""
        folder = folder.absolute()
        path = folder / PLAN_FILE
        record = _read_json(path)
        if record is None:
            raise UsageError(
                f"{folder} is not the folder of a sweep",
                why=f"it contains no {PLAN_FILE}",
                hint="list the sweeps with `torchyard sweep list`",
            )
        check_format(path, record, SWEEP_FORMAT)
        return cls(folder, decode_stored(SweepPlan, record, place=path, what="the plan of a sweep"))

    def cell(self, cell_id: str) -> Cell:
        """Return the cell with that id."""
        if cell_id not in self._cells:
            raise UsageError(
                f"the sweep has no cell {cell_id!r}", hint=f"`torchyard sweep show {self.folder}`"
            )
        return self._cells[cell_id]

    def begin(self, cell_id: str, *, place: str, heartbeat: bool = False) -> Attempt:
        """Claim the next attempt at a cell: two processes never get the same number.

        With a heartbeat, other hosts see that the attempt is running; `end` stops it.
        """
        cell_folder = self._cell_folder(cell_id)
        number = len(self.attempts(cell_id)) + 1
        while True:
            attempt = Attempt(
                number=number,
                began=utc_timestamp("milliseconds"),
                place=place,
                log=f"{LOGS_FOLDER}/{cell_id}.log",
            )
            claimed = {**encode(attempt), "owner": this_process()}
            if heartbeat:
                claimed["heartbeat_s"] = HEARTBEAT_S
            path = cell_folder / f"attempt-{number}.json"
            try:
                cell_folder.mkdir(parents=True, exist_ok=True)
                claim = AttemptClaim.create(path, to_json_text(claimed) + "\n")
            except FileExistsError:
                number += 1
                continue
            except OSError as error:
                raise write_error(path, error, kept="existing data") from error
            self._claims[path] = claim
            if heartbeat:
                claim.start_heartbeat()
            return attempt

    def end(
        self, cell_id: str, number: int, outcome: Outcome, *, why: str = "", idle: bool = False
    ) -> None:
        """Record how an attempt ended; a recorded outcome other than `interrupted` is kept.

        A cell that receives a signal records `interrupted`, without the reason of the sender.
        """
        path = self._cell_folder(cell_id) / f"attempt-{number}.json"
        record = _read_json(path) or encode(Attempt(number=number))
        if record.get("outcome") in (None, "interrupted"):
            record.update(ended=utc_timestamp("milliseconds"), outcome=outcome, why=why)
            record["idle"] = idle or bool(record.get("idle"))
            replace_json(path, record)
        claim = self._claims.pop(path, None)
        if claim is not None:
            claim.release()

    def attempts(self, cell_id: str) -> tuple[Attempt, ...]:
        """Return all attempts at a cell, first to last."""
        return tuple(attempt for attempt, _ in self._attempts(cell_id))

    def run_folder(self, cell_id: str, number: int) -> Path:
        """Return the run folder of an attempt."""
        return self._cell_folder(cell_id) / f"run-{number}"

    def log_path(self, cell_id: str) -> Path:
        """Return the log file of the processes that run the cell."""
        return self.folder / LOGS_FOLDER / f"{self.cell(cell_id).id}.log"

    def status(self, cell_id: str) -> CellStatus:
        """Return the state of a cell from the folder, which does not record whether it is queued."""
        batch = self.batch(cell_id)
        cell = _with_batch_size(self.cell(cell_id), batch)
        records = self._attempts(cell_id)
        attempts = tuple(attempt for attempt, _ in records)
        status = CellStatus(cell=cell, state="waiting", attempts=attempts)
        if not records:
            return status
        finished = next((one for one in attempts if one.outcome == "finished"), None)
        last = finished or attempts[-1]
        folder = self.run_folder(cell_id, last.number)
        status = replace(status, run=str(folder.relative_to(self.folder)), text=last.why)
        if finished is not None:
            return replace(status, state="done", text="", fraction=1.0)
        if last.outcome is None:
            if self._is_lost(cell_id, *records[-1]):
                state = self._state_after(attempts)
                return replace(status, state=state, text="its process has ended")
            progress = self._progress(folder)
            text = str(
                progress.get("text", batch.text if not batch.over and batch.text else "starting")
            )
            fraction = progress.get("fraction")
            number = float(fraction) if isinstance(fraction, (int, float)) else None
            state = "paused" if progress.get("kind") == "paused" else "running"
            return replace(status, state=state, text=text, fraction=number)
        return replace(status, state=self._state_after(attempts))

    def statuses(self) -> list[CellStatus]:
        """Return the states of all cells, in the order of the plan."""
        return [self.status(cell.id) for cell in self.plan.cells]

    def close_lost(self, *, running: Collection[str] = (), take_over: bool = False) -> list[str]:
        """Record the end of attempts whose process has ended, and return their cells.

        `running` are cells that the executor reports as running. `take_over` ends all other attempts
        that this process does not run itself, although their processes may still run.
        """
        lost = []
        for cell in self.plan.cells:
            for attempt, record in self._attempts(cell.id):
                if attempt.outcome is not None or cell.id in running:
                    continue
                path = self._cell_folder(cell.id) / f"attempt-{attempt.number}.json"
                if path in self._claims:
                    continue
                if self._is_lost(cell.id, attempt, record):
                    why = "its process ended without an outcome"
                elif take_over:
                    why = f"taken over from {attempt.place or 'an unknown host'}"
                else:
                    continue
                self.end(cell.id, attempt.number, "interrupted", why=why)
                lost.append(cell.id)
        return lost

    def _is_lost(self, cell_id: str, attempt: Attempt, record: Mapping[str, Any]) -> bool:
        path = self._cell_folder(cell_id) / f"attempt-{attempt.number}.json"
        return is_lost(path, record, now_s=self._now_s)

    def _now_s(self) -> float:
        """Return the time of the file system's clock if this process drives the sweep."""
        path = self.folder / LOCK_FILE
        try:
            if self._driving:
                os.utime(path)
                return path.stat().st_mtime
        except OSError:
            pass
        return time.time()

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Hold the lock of the one process that drives the sweep; the kernel frees it on a crash."""
        path = self.folder / LOCK_FILE
        with write_errors(path, kept="the sweep"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                driver = _read_json(path) or {}
                raise UsageError(
                    f"{self.folder} is driven by another process",
                    why=f"process {driver.get('pid', '?')} on {driver.get('host', '?')}",
                    hint="follow it with `torchyard sweep show`, or end that process first",
                ) from error
            os.ftruncate(descriptor, 0)
            os.write(descriptor, to_json_text(this_process()).encode("ascii"))
            self._driving = True
            yield
        finally:
            self._driving = False
            os.close(descriptor)

    def save_batch(self, cell_id: str, batch: CellBatch) -> None:
        """Save the batch size of a cell, or the progress of the search for it."""
        replace_json(self._cell_folder(cell_id) / BATCH_FILE, encode(batch))

    def batch(self, cell_id: str) -> CellBatch:
        """Return the saved batch size of a cell, in a sweep that searches for batch sizes."""
        if not self.plan.largest_batches:
            return CellBatch()
        path = self._cell_folder(cell_id) / BATCH_FILE
        return decode_stored(CellBatch, _read_json(path) or {}, place=path, what="a batch size")

    def save_runs(self, runs: Mapping[str, str]) -> None:
        """Save the joined runs: run folder by name."""
        replace_json(self.folder / RUNS_FILE, dict(runs))

    def runs(self) -> dict[str, str]:
        """Return the joined runs by name; empty until the sweep has ended."""
        record = _read_json(self.folder / RUNS_FILE) or {}
        return {str(key): str(value) for key, value in record.items()}

    def _state_after(self, attempts: tuple[Attempt, ...]) -> CellState:
        """Return the state of a cell none of whose attempts has finished."""
        tries = sum(attempt.counts for attempt in attempts)
        interrupted = sum(not (attempt.counts or attempt.idle) for attempt in attempts)
        exhausted = tries >= self.plan.limits.tries or interrupted >= MAX_INTERRUPTED
        return "failed" if exhausted else "waiting"

    def _attempts(self, cell_id: str) -> list[tuple[Attempt, Mapping[str, Any]]]:
        folder = self._cell_folder(cell_id)
        attempts: list[tuple[Attempt, Mapping[str, Any]]] = []
        number = 1
        while (record := _read_json(path := folder / f"attempt-{number}.json")) is not None:
            attempt = decode_stored(
                Attempt,
                {**record, "number": number},
                place=path,
                what="an attempt",
                hint="delete the file to measure the cell again",
            )
            attempts.append((attempt, record))
            number += 1
        return attempts

    def _cell_folder(self, cell_id: str) -> Path:
        return self.folder / CELLS_FOLDER / self.cell(cell_id).id

    def _progress(self, run: Path) -> dict[str, Any]:
        """Return the latest progress record of the run."""
        tail, last = self._tails.setdefault(run, (ProgressTail(run), {}))
        for record in tail.more():
            last.update({key: value for key, value in record.items() if value is not None})
        return last


def _with_batch_size(cell: Cell, batch: CellBatch) -> Cell:
    if batch.batch_size is None:
        return cell
    (workload,) = cell.study.workloads
    sized = replace(workload, batch_size=batch.batch_size)
    return replace(cell, study=replace(cell.study, workloads=(sized,)))


def _read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file: None if there is no file, empty if it is incomplete."""
    try:
        record = read_json(path, largest_bytes=LARGEST_ROWS_BYTES)
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    except OSError as error:
        raise unreadable_error(path, error) from error
    return record if isinstance(record, dict) else {}


HEARTBEAT_S: Final = 20.0
LOST_S: Final = 120.0
"""Time without a heartbeat after which an attempt of another host or PID namespace counts as lost."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class AttemptClaim:
    """The lock and heartbeat of a running attempt, held by the process that runs it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use `create` instead."""
        self.path = path
        self._descriptor = descriptor
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def create(cls, path: Path, text: str) -> AttemptClaim:
        """Create the complete, locked file; raise FileExistsError if it exists."""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = _write_new(temporary, text)
        try:
            try:
                os.link(temporary, path)  # never replaces a file, unlike a rename
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                os.close(descriptor)
                descriptor = -1
                descriptor = _write_new(path, text)
        except BaseException:
            if descriptor >= 0:
                os.close(descriptor)
            raise
        finally:
            with suppress(OSError):
                temporary.unlink()
        return cls(path, descriptor)

    def start_heartbeat(self) -> None:
        """Touch the file every `HEARTBEAT_S` from a background thread until `release`."""
        self._thread = threading.Thread(target=self._beat, name="attempt heartbeat", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Stop the heartbeat and release the lock; a second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        os.close(self._descriptor)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with suppress(OSError):
                os.utime(self._descriptor)


def is_lost(
    path: Path, record: Mapping[str, Any], *, now_s: Callable[[], float] = time.time
) -> bool:
    """Return whether the process of an attempt without an outcome has ended.

    `now_s` returns the time of the file system's clock, which may be that of another host.
    """
    owner = record.get("owner")
    if isinstance(owner, Mapping):
        alive = is_alive(owner)
        if alive is not None:
            return not alive
    if _is_locked(path):
        return False
    try:
        return now_s() - path.stat().st_mtime > LOST_S
    except OSError:
        return False


def _is_locked(path: Path) -> bool:
    """Return whether a process holds the lock; False where the file system has no locks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _write_new(path: Path, text: str) -> int:
    """Create a file with that text, locked where supported, and return its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        data = memoryview(text.encode("ascii"))
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
