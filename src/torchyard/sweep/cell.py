"""Measure one cell of a sweep in this process: a bench run into the sweep's folder.

The same on every executor. A finished cell is not measured again, so a cluster may start a job
twice. Every ending except a kill is recorded before the process exits. If the sweep searches
for the largest batch size, the search runs once for all attempts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from torchyard.bench.batch_search import BatchTry, with_largest_batches
from torchyard.bench.bench_run import run_bench
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.events import Event, Listener, ignore_events
from torchyard.errors import TorchyardError, WorkerFailed
from torchyard.process.timing_turn import DRIVER_VARIABLE, TURN_VARIABLE, TimingTurn
from torchyard.sweep.cell_gate import CellGate
from torchyard.sweep.executors.slurm.node_job import job_id
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.model import Cell, CellBatch, Outcome


def with_batch(folder: SweepFolder, cell: Cell, listener: Listener) -> tuple[Cell, tuple[str, ...]]:
    """Return the cell with the largest batch size that fits, and notes about the search.

    A cell whose workload names a batch size, or has none, is returned unchanged.
    """
    saved = folder.batch(cell.id)
    if saved.over:
        return folder.status(cell.id).cell, (saved.text,)
    (workload,) = cell.study.workloads
    if workload.batch_size is not None:
        return cell, ()

    def report_try(one: BatchTry) -> None:
        result = "fits" if one.fits else one.reason or "does not fit"
        text = f"searching: batch size {one.batch_size}, {one.variant}: {result}"
        folder.save_batch(cell.id, CellBatch(text=text))
        listener(Event(kind="phase", text=text, workload=workload.label))

    try:
        study, notes = with_largest_batches(cell.study, told=report_try)
    except WorkerFailed as error:
        # No batch size would fix this. The run reports the error, as without a search.
        return cell, (f"batch size search skipped: {error.what}",)
    size = study.workloads[0].batch_size
    text = "; ".join(notes)
    folder.save_batch(cell.id, CellBatch(over=True, batch_size=size, text=text))
    return folder.status(cell.id).cell, (text,)


TRANSIENT_KINDS: Final = frozenset({"crashed", "killed", "timeout", "protocol"})
"""Failure kinds that may not recur. An exception recurs, and so does running out of memory unless
other cells used the memory at the same time."""
NO_FINISHED_LAUNCH: Final = "no launch: the time budget of the sweep ended during its first launch"
_PR_SET_PDEATHSIG: Final = 1


def run_cell(
    folder: SweepFolder, cell_id: str, *, place: str = "", listener: Listener = ignore_events
) -> Outcome:
    """Measure a cell and record the outcome in the folder."""
    status = folder.status(cell_id)
    if status.state == "done":
        return "finished"
    cell, plan = status.cell, folder.plan
    attempt = folder.begin(cell_id, place=place or socket.gethostname(), heartbeat=True)
    tries = sum(earlier.counts for earlier in status.attempts) + 1

    gate = CellGate.of_environment()

    def end(outcome: Outcome, why: str = "", *, idle: bool = False) -> Outcome:
        folder.end(cell_id, attempt.number, outcome, why=why, idle=idle)
        return outcome

    notes = plan.notes
    try:
        if plan.largest_batches:
            cell, batch_notes = with_batch(folder, cell, listener)
            notes = (*notes, *batch_notes)
        rows = run_bench(
            cell.study,
            folder=folder.run_folder(cell_id, attempt.number),
            command=plan.command,
            listener=listener,
            revision=plan.revision,
            notes=notes,
            turn=TimingTurn.of_environment(),
            gate=gate,
        )
    except KeyboardInterrupt:
        end("interrupted", "interrupted", idle=gate.idle)
        raise
    except TorchyardError as error:
        end("died", error.what + (f": {error.why}" if error.why else ""))
        raise
    except BaseException as error:
        end("died", f"{type(error).__name__}: {error}")
        raise
    if gate.stopped and all(
        row.failure is None and not (row.estimate and row.estimate.launches) for row in rows
    ):
        return end("cancelled", NO_FINISHED_LAUNCH, idle=True)
    why = _retry_reason(rows, beside_others=TURN_VARIABLE in os.environ)
    if why and tries < plan.limits.tries:
        return end("died", why)
    return end("finished")


def stop_on_signals() -> None:
    """Handle the signals that end a job like Ctrl-C, so that finished measurements are kept.

    Only the first one raises: a second one would interrupt the recording of the outcome.
    """
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        if not received:
            received.append(number)
            raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, stop)


def end_with_driver(environment: Mapping[str, str] = os.environ) -> bool:
    """Request SIGINT when the driver that started this process ends.

    Returns False if the driver has already ended.
    """
    driver = environment.get(DRIVER_VARIABLE, "")
    if not driver.isdecimal():
        return True
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    return os.getppid() == int(driver)


def place_of_job(environment: Mapping[str, str] = os.environ) -> str:
    """Return the host name, with the job id on a cluster."""
    host = socket.gethostname()
    job = job_id(environment)
    return f"{host}, job {job}" if job else host


def _retry_reason(rows: list[Comparison], *, beside_others: bool) -> str:
    """Return why the cell should be retried; empty if it should not."""
    transient = TRANSIENT_KINDS | ({"out-of-memory"} if beside_others else set())
    for row in rows:
        failure = row.failure
        if row.verdict is Verdict.FAILED and failure is not None and failure.kind in transient:
            return f"{failure.variant} {failure.kind} ({failure.phase}): {failure.message}"
    return ""
