"""Run a profiler around a program in its target, from the request to a stored profile.

The program keeps its own output, signals and exit code. Prepares what every tool needs (the
environment of the target, the libraries of its PyTorch) and starts the command that the tool made.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from torchyard.core.study import Target
from torchyard.errors import StepFailed, UsageError
from torchyard.files.safe_writing import replace_file
from torchyard.process.start import LaunchSpec, prepare
from torchyard.process.tree import sweep_orphans
from torchyard.process.user_process import PROGRAM_ENTRY, wait_passing_signals
from torchyard.profile.model import ToolProfile, new_tool_folder, sum_of_costs, write_tool_profile
from torchyard.profile.tools import TOOLS
from torchyard.profile.tools.interface import (
    Collected,
    FoundTool,
    Job,
    Tool,
    ToolCommand,
    ToolOptions,
    ask_target,
    find_tool,
    refuse_options,
    shell_text,
)

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
    ready = prepare(spec, launch_mark=secrets.token_hex(8), entry=PROGRAM_ENTRY)
    return Job(
        python=ready.python,
        words=words,
        folder=folder,
        facts=ask_target(ready.python, ready.environment),
        options=options,
        environment=ready.environment,
        entry=str(PROGRAM_ENTRY),
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


MOST_ROWS: Final = 500
_FOLDER_IN_TEXT: Final = "torchyard-profile"
"""Where the printed command puts results: it may be run on another machine."""
_INTERRUPTED_CODES: Final = (130, 143)


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """What would be run."""

    tool: Tool
    found: FoundTool | None
    missing: str
    """Why it cannot be run here; empty when it can."""
    command: ToolCommand
    shell: str
    """One line that does the same in a shell, with results in a folder of the working folder."""
    job: Job
    target: Target


def plan_run(
    tool_name: str, target: Target, words: tuple[str, ...], options: ToolOptions
) -> PlannedRun:
    """Make the command without running the program. Raises for a program that is not there."""
    tool = TOOLS[tool_name]
    refuse_options(tool, options)
    place = Path(_FOLDER_IN_TEXT).absolute()
    job = prepare_job(target, words, folder=place, options=options)
    found, missing = find_tool(tool, job.environment.get("PATH", os.defpath))
    command = _command(tool, found, job, target)
    return PlannedRun(
        tool=tool,
        found=found,
        missing=missing,
        command=command,
        shell=shell_text(command, place),
        job=job,
        target=target,
    )


def run_planned(
    planned: PlannedRun,
    *,
    folder: Path | None = None,
    quiet_program: bool = False,
    say: Callable[[str], None],
) -> tuple[ToolProfile, Path]:
    """Run the tool, read what it left, keep the profile; the path of its file."""
    tool, found = planned.tool, planned.found
    if found is None:
        raise StepFailed(planned.missing)
    tool.check(found, planned.job)
    sweep_orphans()
    place = new_tool_folder(folder)
    job = replace(planned.job, folder=place)
    command = _command(tool, found, job, planned.target)
    profile = ToolProfile(
        tool=tool.name,
        tool_version=found.version,
        program=job.words,
        python=job.python,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        state="running",
        command=command.words,
        variables=command.variables,
        shell=shell_text(command, place),
    )
    write_tool_profile(place, profile)
    say(f"{tool.name}: running {' '.join(job.words)}")
    end = run_tool(job, command, quiet_program=quiet_program)
    say(f"{tool.name}: reading what it left")
    collected = _collect(tool, found, job, end)
    profile = _with(profile, collected, command, end)
    return profile, write_tool_profile(place, profile)


def _command(tool: Tool, found: FoundTool | None, job: Job, target: Target) -> ToolCommand:
    name = tool.programs[0] if tool.programs else ""
    command = tool.command(found.path if found is not None else name, job)
    return replace(command, variables=(*target.variables, *command.variables))


def _collect(tool: Tool, found: FoundTool, job: Job, end: ToolEnd) -> Collected:
    if end.exit_code:
        tool.explain_failure(job)
    try:
        return tool.collect(found, job)
    except StepFailed as error:
        # A program that failed, or was stopped, may leave nothing to read: it has the word.
        if end.exit_code:
            return Collected(notes=(error.what,))
        raise


def _with(profile: ToolProfile, said: Collected, command: ToolCommand, end: ToolEnd) -> ToolProfile:
    rows = said.rows
    if end.interrupted or end.exit_code in _INTERRUPTED_CODES:
        state = "interrupted"
    elif said.state in ("finished", "crashed", "interrupted"):
        state = said.state
    else:
        state = "crashed" if end.exit_code or said.state == "running" else "finished"
    return replace(
        profile,
        tool_version=profile.tool_version or said.tool_version,
        state=state,
        exit_code=end.exit_code,
        unit=said.unit,
        row_kind=said.row_kind,
        rows=rows[:MOST_ROWS],
        rows_left_out=max(0, len(rows) - MOST_ROWS),
        total_cost=sum_of_costs(rows),
        recorded_ns=said.recorded_ns,
        steps=said.steps,
        recorded_steps=said.recorded_steps,
        peak_memory_bytes=said.peak_memory_bytes,
        peak_device_bytes=said.peak_device_bytes,
        counters=said.counters,
        stacks=said.stacks,
        files=said.files,
        notes=(*command.notes, *said.notes),
    )
