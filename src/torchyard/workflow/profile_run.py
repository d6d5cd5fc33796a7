"""A run of a program under a profiler, from the request to a profile that is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from torchyard.core.tool_profile import ToolProfile, sum_of_costs
from torchyard.core.variant import Target
from torchyard.errors import StepFailed
from torchyard.process.markers import sweep_orphans
from torchyard.values.tool_profile_file import new_tool_folder, write_tool_profile
from torchyard.values.tool_run import ToolEnd, prepare_job, run_tool
from torchyard.values.tools import TOOLS
from torchyard.values.tools.contract import (
    Collected,
    FoundTool,
    Job,
    Tool,
    ToolCommand,
    ToolOptions,
    find_tool,
    refuse_options,
    shell_text,
)

__all__ = ["PlannedRun", "plan_run", "run_planned"]

MOST_ROWS: Final = 500
_FOLDER_IN_TEXT: Final = "torchyard-profile"
"""Where the printed command puts results: it may be run on another machine."""
_INTERRUPTED: Final = (130, 143)


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
    if end.interrupted or end.exit_code in _INTERRUPTED:
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
