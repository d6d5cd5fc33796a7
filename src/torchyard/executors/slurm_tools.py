"""The programs of Slurm, and submitit: found, started, and their refusals told.

Knows nothing of sweeps and of what the programs' answers mean.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from typing import Final

from torchyard.errors import MissingTool, StepFailed

__all__ = ["ask_slurm", "check_tools", "run_slurm"]

NEEDED: Final = ("sbatch", "squeue", "scancel", "scontrol")
_OF_USERS: Final = ("SQUEUE_", "SACCT_", "SCANCEL_")
LIMIT_S: Final = 60.0
"""A controller that is busy may take its time; Slurm's own limit (MessageTimeout) is often 10 s, and
its programs try several times."""


def check_tools() -> None:
    """Raises MissingTool when jobs cannot be handed in from here."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise MissingTool(
            f"there is no {', '.join(missing)} here",
            why="the Slurm executor hands cells to a Slurm cluster through its own programs",
            hint="run this on a login node of the cluster, or install Slurm's client programs "
            "(slurm-client on Debian and Ubuntu, slurm on Fedora)",
        )
    if find_spec("submitit") is None:
        raise MissingTool(
            "submitit is not installed",
            why="jobs are handed to Slurm by it",
            hint="pip install 'torchyard[cluster]'",
        )


def run_slurm(name: str, *arguments: str, limit_s: float = LIMIT_S) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program of Slurm; a hang is StepFailed."""
    line = shlex.join((name, *arguments))
    try:
        done = subprocess.run(
            [name, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            # Sites may set other formats and filters for people.
            env={**_variables(), "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(
            f"`{line}` did not answer within {limit_s:g} s", hint="is the Slurm controller up?"
        ) from None
    except OSError as error:
        raise MissingTool(f"cannot run {name}: {error.strerror or error}") from error
    return done.returncode, done.stdout, done.stderr.strip()


def ask_slurm(name: str, *arguments: str) -> str:
    """What a program of Slurm answers; raises StepFailed with its own words when it does not."""
    code, said, error = run_slurm(name, *arguments)
    if code != 0:
        raise StepFailed(
            f"{name} ended with {code}: {error or 'it said nothing'}",
            why=f"it was asked `{shlex.join((name, *arguments))}`",
            hint="ask Slurm yourself; what was handed in goes on",
        )
    return said


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_USERS)}
