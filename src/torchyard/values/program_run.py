"""Runs a program in its target under the watch, with its own output, signals and exit code.

Knows nothing of findings: it starts the process, passes signals on and says how it ended.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torchyard.worker
from torchyard.core.records import encode
from torchyard.errors import UsageError
from torchyard.process.launch import LaunchSpec, prepare
from torchyard.results.run_home import home_folder
from torchyard.values.passing import wait_passing_signals
from torchyard.values.request import ProfileRequest

__all__ = ["ProgramEnd", "run_in_target"]

ENTRY: Final = Path(torchyard.worker.__file__).resolve().parent / "values" / "run_program.py"


@dataclass(frozen=True, kw_only=True)
class ProgramEnd:
    """How the program's process ended, and where its result is."""

    exit_code: int
    """As a shell says it: 128 and the signal's number after a signal."""
    output: Path
    interrupted: bool = False


def run_in_target(
    request: ProfileRequest,
    folder: Path,
    *,
    name: str = "watched",
    silent: bool = False,
    limit_s: float | None = None,
    **plan: Any,
) -> ProgramEnd:
    """Run the program once; `plan` adds to what the worker is told.

    A `silent` run is one that the user did not ask for: it reads and prints nothing. One that takes
    longer than the limit is ended.
    """
    if request.program and request.program[0] != "-m" and not Path(request.program[0]).is_file():
        raise UsageError(
            f"there is no file {request.program[0]}", hint="give the path of a Python script"
        )
    output = folder / f"{name}.json"
    plan_file = folder / f"{name}.plan.json"
    plan_file.write_text(
        json.dumps(
            {
                "options": asdict(request.options),
                "output": str(output),
                "cache": str(home_folder() / "scan"),
                "eager": request.eager,
                "workload": encode(request.workload) if request.workload else None,
                "steps": request.steps,
                "precision": request.precision,
                **plan,
            }
        ),
        encoding="utf-8",
    )
    spec = LaunchSpec(
        name=request.target.name,
        python=request.target.python,
        variables=(*request.target.variables, *request.environment.variables),
        preload=request.environment.preload,
    )
    ready = prepare(spec, launch_mark=secrets.token_hex(8), entry=ENTRY)
    command = [ready.python, str(ENTRY), str(plan_file), "--", *request.program]
    process = subprocess.Popen(
        command,
        env=dict(ready.environment),
        stdin=subprocess.DEVNULL if silent else None,
        stdout=_stdout(request, silent),
        stderr=subprocess.DEVNULL if silent else None,
    )
    code, interrupted = wait_passing_signals(process, limit_s=limit_s)
    return ProgramEnd(exit_code=code, output=output, interrupted=bool(interrupted))


def _stdout(request: ProfileRequest, silent: bool) -> int | None:
    if silent:
        return subprocess.DEVNULL
    return sys.stderr.fileno() if request.quiet_program else None
