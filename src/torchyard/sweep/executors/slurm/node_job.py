"""The part of the Slurm executor that runs on a compute node, inside a job.

submitit loads a `CellJob` there and calls it. It runs the cell's command, returns its result as the
job's exit code, and leaves a note in the sweep's folder: without accounting, Slurm forgets jobs
after some minutes.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from torchyard.errors import TorchyardError
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.process.timing_turn import DRIVER_VARIABLE, FIRST_TURN_VARIABLE, TURN_VARIABLE
from torchyard.sweep.executors.slurm.job_states import TIME_LIMIT_CODE, is_void, run_slurm

__all__ = ["SLURM_FOLDER", "CellJob", "end_path", "read_end", "read_time_left"]

SLURM_FOLDER: Final = "slurm"
"""Below the sweep's folder: what submitit writes, what the jobs print, and how they ended."""
_BEFORE_SLURM_S: Final = 10.0
_TIME_LEFT: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """One cell's command. Pickled on the login node, called on a compute node."""

    folder: str
    """Of the sweep."""
    name: str
    index: int
    cell: str
    argv: tuple[str, ...]
    log: str
    limit_s: float | None = None

    def __call__(self) -> NoReturn:
        """Run it, and end this process with its exit code: that is what Slurm gets to see."""
        sys.exit(self._run())

    def _run(self) -> int:
        folder = Path(self.folder)
        if is_void(folder, self.name):
            # The driver took this submission for lost, and the cell may run in another job by now.
            print(f"{self.name} was given up by the driver: nothing is run", flush=True)  # noqa: T201
            return 0
        path = end_path(folder, self.name, self.index)
        with suppress(FileNotFoundError):
            path.unlink()  # of a run before this one, which was put back into the queue
        code = self._command()
        end = {
            "cell": self.cell,
            "job": _job(),
            "place": socket.gethostname(),
            "code": code,
        }
        replace_file(path, to_json_text(end) + "\n")
        return code

    def _command(self) -> int:
        # A driver that was itself a cell's process must not be waited for here.
        ours = {DRIVER_VARIABLE, TURN_VARIABLE, FIRST_TURN_VARIABLE}
        variables = {key: text for key, text in os.environ.items() if key not in ours}
        with Path(self.log).open("ab") as log:
            process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
            )
        # Slurm sends its signals to all processes of a job, also to the command. submitit, in whose
        # process this is, takes them without ending.
        limit_s = self._limit_s()
        if limit_s is not None:
            print(f"the command may take {limit_s:.0f} s", flush=True)  # noqa: T201
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            # Without a word: one that is asked to end would call itself interrupted. Its workers end
            # with it by themselves.
            process.kill()
            process.wait()
            return TIME_LIMIT_CODE
        return 128 - code if code < 0 else code

    def _limit_s(self) -> float | None:
        """When the command is ended here: by its own limit, or a little before Slurm would do it.

        Slurm asks all processes of a job to end first; then the command would say of itself that it
        was interrupted, and be tried again for ever.
        """
        left_s = _left_s()
        of_job_s = None if left_s is None else max(1.0, left_s - _BEFORE_SLURM_S)
        return min((one for one in (self.limit_s, of_job_s) if one is not None), default=None)


def end_path(folder: Path, name: str, index: int) -> Path:
    """Where a job says how it ended."""
    return folder / SLURM_FOLDER / f"{name}-{index}.end.json"


def read_end(folder: Path, name: str, index: int) -> dict[str, Any] | None:
    """How a job said that it ended; None when it has not said."""
    try:
        record = read_json(end_path(folder, name, index))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("code"), int) else None


def read_time_left(text: str) -> float | None:
    """Seconds from squeue's TimeLeft: `2-03:00:00`, `1:00:00`, `9:59`; None for `UNLIMITED`."""
    match = _TIME_LEFT.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds


def _left_s() -> float | None:
    """How long this job may go on; None when nobody says."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")  # not before Slurm 23.02
    if end.isascii() and end.isdecimal():
        return int(end) - time.time()
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    try:
        code, said, _ = run_slurm("squeue", "--noheader", f"--jobs={job}", "--format=%L")
    except TorchyardError:
        return None
    return read_time_left(said) if code == 0 else None


def _job() -> str:
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")
