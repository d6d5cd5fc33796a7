"""Runs a profiler around a program in its target, with the program's own output, signals, exit code.

Prepares what every tool needs (environment of the target, its torch's libraries) and starts the
command that the tool made. Knows no tool by name.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.variant import Target
from torchyard.errors import StepFailed, UsageError
from torchyard.process.launch import LaunchSpec, prepare
from torchyard.results.durable import replace_file
from torchyard.values.passing import wait_passing_signals
from torchyard.values.program_run import ENTRY
from torchyard.values.target_facts import ask_target
from torchyard.values.tools.contract import Job, ToolCommand, ToolOptions

__all__ = ["ToolEnd", "prepare_job", "run_tool"]

_INTERRUPTED: Final = 130
_TERMINATED: Final = 143


@dataclass(frozen=True, kw_only=True)
class ToolEnd:
    """How the tool's process ended; the tools pass the program's own exit code on."""

    exit_code: int
    interrupted: bool


def prepare_job(
    target: Target, words: tuple[str, ...], *, folder: Path, options: ToolOptions
) -> Job:
    """Check the program, and ask the target what tools need to know."""
    _check_program(words)
    spec = LaunchSpec(name=target.name, python=target.python, variables=target.variables)
    ready = prepare(spec, launch_mark=secrets.token_hex(8), entry=ENTRY)
    return Job(
        python=ready.python,
        words=words,
        folder=folder,
        facts=ask_target(ready.python, ready.environment),
        options=options,
        environment=ready.environment,
        entry=str(ENTRY),
    )


def run_tool(job: Job, command: ToolCommand, *, quiet_program: bool = False) -> ToolEnd:
    """Run to the end. `quiet_program` sends what the program prints on stdout to stderr."""
    for path, text in command.files:
        replace_file(Path(path), text)
    try:
        process = subprocess.Popen(
            command.words,
            env={**job.environment, **dict(command.variables)},
            stdout=sys.stderr.fileno() if quiet_program else None,
        )
    except OSError as error:
        raise StepFailed(
            f"cannot run {command.words[0]}: {error.strerror or error}",
            hint="look whether the tool is installed as a whole",
        ) from error
    code, ended_by = wait_passing_signals(process)
    if ended_by == signal.SIGINT and code == _TERMINATED:
        # On Ctrl-C perf ends its program with SIGTERM, and then itself the same way.
        code = _INTERRUPTED
    return ToolEnd(exit_code=code, interrupted=bool(ended_by))


def _check_program(words: tuple[str, ...]) -> None:
    if not words:
        raise UsageError("no program is named", hint="`torchyard profile --tool torch SCRIPT`")
    for word in words:
        if "\0" in word:
            raise UsageError(f"{word!r} holds a zero byte", hint="remove it")
    if words[0] == "-m":
        return
    path = Path(words[0])
    if path.is_dir():
        raise UsageError(f"{words[0]} is a folder", hint="give the path of a Python script")
    if not path.is_file():
        raise UsageError(f"there is no file {words[0]}", hint="give the path of a Python script")
