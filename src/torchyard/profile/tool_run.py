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
from torchyard.process.programs import PROGRAM_ENTRY, wait_passing_signals
from torchyard.process.start import LaunchSpec, prepare
from torchyard.process.tree import sweep_orphans
from torchyard.profile.model import (
    TOOL_PROFILE_FILE,
    Collected,
    ToolProfile,
    sum_of_costs,
    tool_profiles_home,
)
from torchyard.profile.tools import TOOLS
from torchyard.profile.tools.interface import (
    InstalledTool,
    Job,
    Tool,
    ToolCommand,
    ToolOptions,
    check_options,
    find_tool,
    query_target,
    shell_text,
)
from torchyard.results.directory import new_output_folder, write_profile_file

_INTERRUPTED: Final = 130
_TERMINATED: Final = 143


@dataclass(frozen=True, kw_only=True)
class ToolEnd:
    """How the tool's process ended; tools return the exit code of the program."""

    exit_code: int
    interrupted: bool


def prepare_job(
    target: Target, words: tuple[str, ...], *, folder: Path, options: ToolOptions
) -> Job:
    """Check the program and query the target for the facts that tools need."""
    _check_program(words)
    spec = LaunchSpec(name=target.name, python=target.python, variables=target.variables)
    ready = prepare(spec, launch_mark=secrets.token_hex(8), entry=PROGRAM_ENTRY)
    return Job(
        python=ready.python,
        words=words,
        folder=folder,
        facts=query_target(ready.python, ready.environment),
        options=options,
        environment=ready.environment,
        entry=str(PROGRAM_ENTRY),
    )


def run_tool(job: Job, command: ToolCommand, *, quiet_program: bool = False) -> ToolEnd:
    """Run the command to its end; `quiet_program` redirects the program's stdout to stderr."""
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
            hint="check that the profiler is completely installed",
        ) from error
    code, ended_by = wait_passing_signals(process)
    if ended_by == signal.SIGINT and code == _TERMINATED:
        # On Ctrl-C perf terminates the program and then itself with SIGTERM.
        code = _INTERRUPTED
    return ToolEnd(exit_code=code, interrupted=bool(ended_by))


def _check_program(words: tuple[str, ...]) -> None:
    if not words:
        raise UsageError("no program given", hint="`torchyard profile SCRIPT [ARGUMENTS]...`")
    for word in words:
        if "\0" in word:
            raise UsageError(f"argument {word!r} contains a null byte", hint="remove it")
    if words[0] == "-m":
        return
    path = Path(words[0])
    if path.is_dir():
        raise UsageError(f"{words[0]} is a directory", hint="give the path of a Python script")
    if not path.is_file():
        raise UsageError(f"no such file: {words[0]}", hint="give the path of a Python script")


MOST_ROWS: Final = 500
_PRINTED_FOLDER: Final = "torchyard-profile"
"""Results folder in printed commands, which may be run on another machine."""
_INTERRUPTED_CODES: Final = (130, 143)


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A profiler command that is ready to run."""

    tool: Tool
    installed: InstalledTool | None
    missing: str
    """Why the tool cannot run here; empty if it can."""
    command: ToolCommand
    shell: str
    """The command as one shell line, with results in a folder of the working directory."""
    job: Job
    target: Target


def plan_run(
    tool_name: str, target: Target, words: tuple[str, ...], options: ToolOptions
) -> PlannedRun:
    """Build the command without running it; raise UsageError if the program does not exist."""
    tool = TOOLS[tool_name]
    check_options(tool, options)
    folder = Path(_PRINTED_FOLDER).absolute()
    job = prepare_job(target, words, folder=folder, options=options)
    installed, missing = find_tool(tool, job.environment.get("PATH", os.defpath))
    command = _command(tool, installed, job, target)
    return PlannedRun(
        tool=tool,
        installed=installed,
        missing=missing,
        command=command,
        shell=shell_text(command, folder),
        job=job,
        target=target,
    )


def run_planned(
    planned: PlannedRun,
    *,
    folder: Path | None = None,
    quiet_program: bool = False,
    report_progress: Callable[[str], None],
) -> tuple[ToolProfile, Path]:
    """Run the tool, read its output and store the profile; return it and its path."""
    tool, installed = planned.tool, planned.installed
    if installed is None:
        raise StepFailed(planned.missing)
    tool.check(installed, planned.job)
    sweep_orphans()
    output = new_output_folder(folder, home=tool_profiles_home())
    profile_file = output / TOOL_PROFILE_FILE
    job = replace(planned.job, folder=output)
    command = _command(tool, installed, job, planned.target)
    profile = ToolProfile(
        tool=tool.name,
        tool_version=installed.version,
        program=job.words,
        python=job.python,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        state="running",
        command=command.words,
        variables=command.variables,
        shell=shell_text(command, output),
    )
    write_profile_file(profile_file, profile)
    report_progress(f"{tool.name}: running {' '.join(job.words)}")
    end = run_tool(job, command, quiet_program=quiet_program)
    report_progress(f"{tool.name}: reading the recorded data")
    collected = _collect(tool, installed, job, end)
    profile = _completed(profile, collected, command, end)
    return profile, write_profile_file(profile_file, profile)


def _command(tool: Tool, installed: InstalledTool | None, job: Job, target: Target) -> ToolCommand:
    name = tool.programs[0] if tool.programs else ""
    command = tool.command(installed.path if installed is not None else name, job)
    return replace(command, variables=(*target.variables, *command.variables))


def _collect(tool: Tool, installed: InstalledTool, job: Job, end: ToolEnd) -> Collected:
    if end.exit_code:
        tool.explain_failure(job)
    try:
        return tool.collect(installed, job)
    except StepFailed as error:
        # A failed or interrupted program may leave no data; its own exit code is the result.
        if end.exit_code:
            return Collected(notes=(error.what,))
        raise


def _completed(
    profile: ToolProfile, collected: Collected, command: ToolCommand, end: ToolEnd
) -> ToolProfile:
    rows = collected.rows
    if end.interrupted or end.exit_code in _INTERRUPTED_CODES:
        state = "interrupted"
    elif collected.state in ("finished", "crashed", "interrupted"):
        state = collected.state
    else:
        state = "crashed" if end.exit_code or collected.state == "running" else "finished"
    return replace(
        profile,
        **{
            **vars(collected),
            "tool_version": profile.tool_version or collected.tool_version,
            "state": state,
            "rows": rows[:MOST_ROWS],
            "notes": (*command.notes, *collected.notes),
        },
        exit_code=end.exit_code,
        rows_left_out=max(0, len(rows) - MOST_ROWS),
        total_cost=sum_of_costs(rows),
    )
