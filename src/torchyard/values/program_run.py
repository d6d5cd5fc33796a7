"""Runs a program in its target under the watch, with its own output, signals and exit code.

Knows nothing of findings: it starts the process, passes signals on and says how it ended.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torchyard.worker
from torchyard.core.records import encode
from torchyard.errors import UsageError
from torchyard.process.launch import LaunchSpec, prepare
from torchyard.results.run_home import home_folder
from torchyard.values.request import ProfileRequest

__all__ = ["ProgramEnd", "run_in_target"]

ENTRY: Final = Path(torchyard.worker.__file__).resolve().parent / "values" / "run_program.py"
_PASSED: Final = (signal.SIGTERM, signal.SIGHUP)


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
    interrupted = False
    with _signals_to(process):
        while True:
            try:
                code = process.wait(limit_s)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                limit_s = None
            except KeyboardInterrupt:
                # The terminal sent it to the program, too: it ends by itself, and writes first.
                interrupted = True
    code = 128 - code if code < 0 else code
    return ProgramEnd(exit_code=code, output=output, interrupted=interrupted)


def _stdout(request: ProfileRequest, silent: bool) -> int | None:
    if silent:
        return subprocess.DEVNULL
    return sys.stderr.fileno() if request.quiet_program else None


@contextmanager
def _signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand signals on that the terminal does not send to the program by itself."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in _PASSED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.kill()
            process.wait()
