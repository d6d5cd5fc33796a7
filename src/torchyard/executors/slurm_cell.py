"""The part of the Slurm executor that runs on a compute node, inside a job.

submitit loads a `CellJob` there and calls it. It runs the cell's command, passes on how that ended as
the job's exit code, and leaves a word about it in the sweep's folder: Slurm forgets jobs after some
minutes where it keeps no accounts. Knows nothing of what the command measures.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from torchyard.executors.local import DRIVER_VARIABLE
from torchyard.executors.slurm_records import is_void
from torchyard.executors.slurm_states import TIME_LIMIT_CODE
from torchyard.results.durable import replace_file, to_json_text

__all__ = ["SLURM_FOLDER", "CellJob", "end_path", "read_end"]

SLURM_FOLDER: Final = "slurm"
"""Below the sweep's folder: what submitit writes, what the jobs print, and how they ended."""


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
        variables = {key: text for key, text in os.environ.items() if key != DRIVER_VARIABLE}
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
        try:
            code = process.wait(self.limit_s)
        except subprocess.TimeoutExpired:
            # Without a word: one that is asked to end would call itself interrupted. Its workers end
            # with it by themselves.
            process.kill()
            process.wait()
            return TIME_LIMIT_CODE
        return 128 - code if code < 0 else code


def end_path(folder: Path, name: str, index: int) -> Path:
    """Where a job says how it ended."""
    return folder / SLURM_FOLDER / f"{name}-{index}.end.json"


def read_end(folder: Path, name: str, index: int) -> dict[str, Any] | None:
    """How a job said that it ended; None when it has not said."""
    try:
        record = json.loads(end_path(folder, name, index).read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("code"), int) else None


def _job() -> str:
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")
