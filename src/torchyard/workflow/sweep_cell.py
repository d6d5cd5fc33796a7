"""One cell of a sweep, measured in this process: a bench run into the sweep's folder.

The same on every executor. What has finished is left alone, so that a job that a cluster starts twice
does no harm. Every way in which it can end but a kill is written down before the process is over.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NoReturn

from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.events import Listener, ignore_events
from torchyard.core.sweep import Outcome
from torchyard.errors import TorchyardError
from torchyard.process.timing_turn import DRIVER_VARIABLE, TURN_VARIABLE, TimingTurn
from torchyard.results.sweep_folder import SweepFolder
from torchyard.workflow.bench_run import run_bench
from torchyard.workflow.sweep_batch import with_batch

__all__ = ["end_with_driver", "place_of_job", "run_cell", "stop_on_signals"]

PASSING_KINDS: Final = frozenset({"crashed", "killed", "timeout", "protocol"})
"""Failures of a worker that may not come again. One that raised will, and one that found too little
memory, unless other cells had it."""
_PR_SET_PDEATHSIG: Final = 1


def run_cell(
    folder: SweepFolder, cell_id: str, *, place: str = "", listener: Listener = ignore_events
) -> Outcome:
    """Measure a cell, and say in the folder how it went."""
    status = folder.status(cell_id)
    if status.state == "done":
        return "finished"
    cell, plan = status.cell, folder.plan
    attempt = folder.begin(cell_id, place=place or socket.gethostname(), heartbeat=True)
    tries = sum(earlier.counts for earlier in status.attempts) + 1

    def end(outcome: Outcome, why: str = "") -> Outcome:
        folder.end(cell_id, attempt.number, outcome, why=why)
        return outcome

    notes = plan.notes
    try:
        if plan.largest_batches:
            cell, found = with_batch(folder, cell, listener)
            notes = (*notes, *found)
        rows = run_bench(
            cell.study,
            folder=folder.run_folder(cell_id, attempt.number),
            command=plan.command,
            listener=listener,
            revision=plan.revision,
            notes=notes,
            turn=TimingTurn.of_environment(),
        )
    except KeyboardInterrupt:
        end("interrupted", "interrupted")
        raise
    except TorchyardError as error:
        end("died", error.what + (f": {error.why}" if error.why else ""))
        raise
    except BaseException as error:
        end("died", f"{type(error).__name__}: {error}")
        raise
    why = _may_pass(rows, beside_others=TURN_VARIABLE in os.environ)
    if why and tries < plan.limits.tries:
        return end("died", why)
    return end("finished")


def stop_on_signals() -> None:
    """Take the signals that end a job for Ctrl-C, so that what was measured is kept."""

    def stop(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, stop)


def end_with_driver(environment: Mapping[str, str] = os.environ) -> bool:
    """Ask to be interrupted when the driver that started this process ends; False: it has ended."""
    driver = environment.get(DRIVER_VARIABLE, "")
    if not driver.isdecimal():
        return True
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    return os.getppid() == int(driver)


def place_of_job(environment: Mapping[str, str] = os.environ) -> str:
    """This host, and the job where a cluster says one."""
    host = socket.gethostname()
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")
    return f"{host}, job {job}" if job else host


def _may_pass(rows: list[Comparison], *, beside_others: bool) -> str:
    """Why the cell should be tried again; empty when it should not."""
    passing = PASSING_KINDS | ({"out-of-memory"} if beside_others else set())
    for row in rows:
        failure = row.failure
        if row.verdict is Verdict.FAILED and failure is not None and failure.kind in passing:
            return f"{failure.variant} {failure.kind} ({failure.phase}): {failure.message}"
    return ""
