"""The part of the Slurm executor that runs on a compute node, inside a job.

submitit loads a `CellJob` there and calls it. It runs the cell's command, returns its exit code as
the job's exit code, and writes an end record to the sweep's folder: without accounting, Slurm removes
jobs after some minutes.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from torchyard.errors import TorchyardError
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_json
from torchyard.process.timing_turn import (
    DRIVER_VARIABLE,
    FIRST_TURN_VARIABLE,
    RESERVED_VARIABLE,
    TURN_VARIABLE,
)
from torchyard.sweep.executors.slurm.job_states import TIME_LIMIT_CODE, is_void, run_slurm

SLURM_FOLDER: Final = "slurm"
"""Subfolder of the sweep for files of submitit, output of jobs, and end records."""
_BEFORE_SLURM_S: Final = 10.0
_TIME_LEFT: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """The command of a cell. Pickled on the login node, called on a compute node."""

    folder: str
    """The folder of the sweep."""
    name: str
    index: int
    cell: str
    argv: tuple[str, ...]
    log: str
    limit_s: float | None = None

    def __call__(self) -> NoReturn:
        """Run the command and exit with its exit code, which Slurm records."""
        sys.exit(self._run())

    def _run(self) -> int:
        folder = Path(self.folder)
        if is_void(folder, self.name):
            # The driver considered this submission lost; the cell may run in another job.
            print(f"{self.name} was abandoned by the driver: nothing to run", flush=True)  # noqa: T201
            return 0
        path = end_path(folder, self.name, self.index)
        with suppress(FileNotFoundError):
            path.unlink()  # from an earlier run of this job, before it was requeued
        code = self._command()
        end = {
            "cell": self.cell,
            "job": job_id(os.environ),
            "place": socket.gethostname(),
            "code": code,
        }
        replace_json(path, end)
        return code

    def _command(self) -> int:
        # The driver may itself run in a cell; its variables must not apply here.
        removed = {DRIVER_VARIABLE, TURN_VARIABLE, FIRST_TURN_VARIABLE, RESERVED_VARIABLE}
        variables = {key: text for key, text in os.environ.items() if key not in removed}
        with Path(self.log).open("ab") as log:
            process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
            )
        # Slurm sends signals to all processes of a job, including the command. submitit, which runs
        # in this process, ignores them.
        limit_s = self._limit_s()
        if limit_s is not None:
            print(f"time limit of the command: {limit_s:.0f} s", flush=True)  # noqa: T201
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            # SIGKILL: after SIGTERM the command would record itself as interrupted. Its workers end
            # with it.
            process.kill()
            process.wait()
            return TIME_LIMIT_CODE
        return 128 - code if code < 0 else code

    def _limit_s(self) -> float | None:
        """Return the time limit of the command: its own, or a little less than that of the job.

        At the end of a job Slurm sends SIGTERM to all processes; the command would record itself as
        interrupted and be retried forever.
        """
        remaining_s = _remaining_s()
        of_job_s = None if remaining_s is None else max(1.0, remaining_s - _BEFORE_SLURM_S)
        return min((one for one in (self.limit_s, of_job_s) if one is not None), default=None)


def end_path(folder: Path, name: str, index: int) -> Path:
    """Return the path of a job's end record."""
    return folder / SLURM_FOLDER / f"{name}-{index}.end.json"


def read_end(folder: Path, name: str, index: int) -> dict[str, Any] | None:
    """Read the end record of a job; None if there is none."""
    try:
        record = read_json(end_path(folder, name, index))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("code"), int) else None


def read_time_left(text: str) -> float | None:
    """Parse squeue's TimeLeft (`2-03:00:00`, `1:00:00`, `9:59`) to seconds; None for `UNLIMITED`."""
    match = _TIME_LEFT.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds


def _remaining_s() -> float | None:
    """Return the remaining time of this job; None if unknown."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")  # not before Slurm 23.02
    if end.isascii() and end.isdecimal():
        return int(end) - time.time()
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    try:
        code, output, _ = run_slurm("squeue", "--noheader", f"--jobs={job}", "--format=%L")
    except TorchyardError:
        return None
    return read_time_left(output) if code == 0 else None


def job_id(environment: Mapping[str, str]) -> str:
    """Return the id of the job that this process runs in, such as `12_3`; empty outside of one."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")
