"""What a profiler module provides: its programs, its command line, and how to read its output.

A tool is a `Tool` in a sibling module; `profile/tool_run.py` starts the program. Also here: facts about the target,
queried without importing torch, and the worker plan that switches an external tool on for some steps only.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from torchyard.errors import UsageError, WorkerFailed
from torchyard.process.programs import capture
from torchyard.profile.model import Collected, CostRow

_QUERY_LIMIT_S: Final = 60.0
# find_spec does not execute a top-level module. The working directory is removed from sys.path first:
# a folder named `torch` in it is not the target's torch.
_QUERY: Final = """
import sys
if sys.path and not sys.path[0]:
    del sys.path[0]
import importlib.util, json
try:
    spec = importlib.util.find_spec("torch")
except (ImportError, ValueError):
    spec = None
places = list(spec.submodule_search_locations or ()) if spec else []
print(json.dumps({"version": list(sys.version_info[:3]), "torch": places[:1],
    "trampoline": hasattr(sys, "activate_stack_trampoline")}))
"""


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """Version of an interpreter and the location of its torch."""

    python_version: tuple[int, ...] = ()
    torch_folder: str | None = None
    perf_trampoline: bool = False
    """Whether this Python supports perf (`sys.activate_stack_trampoline`)."""

    @property
    def library_folder(self) -> str | None:
        """Folder of torch's shared libraries."""
        return None if self.torch_folder is None else str(Path(self.torch_folder) / "lib")


def text_of(path: Path) -> str:
    """Return the text of a file that a tool wrote; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def query_target(python: str, environment: Mapping[str, str]) -> TargetFacts:
    """Run the interpreter once and return its facts."""
    try:
        completed = capture([python, "-c", _QUERY], variables=environment, limit_s=_QUERY_LIMIT_S)
        answer = json.loads(completed.stdout.splitlines()[-1])
        places = answer["torch"]
        return TargetFacts(
            python_version=tuple(int(part) for part in answer["version"]),
            torch_folder=str(places[0]) if places else None,
            perf_trampoline=bool(answer["trampoline"]),
        )
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, KeyError) as error:
        raise WorkerFailed(
            f"cannot query the interpreter {python}",
            why=f"{type(error).__name__}: {error}",
            hint="`torchyard target` shows details about it",
        ) from error


THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_VERSION_LIMIT_S: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """Options of the command line; each tool supports some of them."""

    shapes: bool = True
    memory: bool = True
    stacks: bool = False
    skip_steps: int = 0
    warm_steps: int = 0
    active_steps: int = 0
    """Steps to record; 0 for all remaining steps."""
    most_s: float = 60.0
    """Time limit of recording."""
    frequency_hz: int = 199
    """Samples per second; not a round number, to avoid sampling in lockstep with timers."""
    events: tuple[str, ...] = ()
    call_graph: str = "fp"
    launches: int = 100
    """Kernel launches that ncu profiles; it replays each several times."""
    threads: int | None = None
    knobs: tuple[tuple[str, str], ...] = ()
    extra: tuple[str, ...] = ()
    """Additional arguments for the tool."""

    @property
    def records_some_steps(self) -> bool:
        """Whether only some of the steps are recorded."""
        return bool(self.skip_steps or self.warm_steps or self.active_steps)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A program to profile, its target, and the folder of the results."""

    python: str
    words: tuple[str, ...]
    """`SCRIPT ARGUMENTS...` or `-m MODULE ARGUMENTS...`."""
    folder: Path
    facts: TargetFacts
    options: ToolOptions = field(default_factory=ToolOptions)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment of the target without the variables of the tool."""
    entry: str = ""
    """Path of Torchyard's script that runs a program inside a target."""

    @property
    def program(self) -> tuple[str, ...]:
        """Command line of the program alone."""
        return (self.python, *self.words)

    def inside_worker(self, plan: str) -> tuple[str, ...]:
        """Return the command line that runs the program inside the worker, with a plan file."""
        return (self.python, self.entry, plan, "--", *self.words)


@dataclass(frozen=True, kw_only=True)
class ToolCommand:
    """Command line of a tool."""

    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """(path, text) of files to write before the start."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class InstalledTool:
    """Path and version of an installed tool."""

    path: str
    version: str = ""


OPTION_NAMES: Final = {
    **{item.name: "--" + item.name.replace("_", "-") for item in fields(ToolOptions)},
    "most_s": "--limit",
    "frequency_hz": "--frequency",
    "events": "--event",
    "knobs": "--knob",
    "extra": "--tool-arg",
}
"""Field of ToolOptions -> command line option."""
STEPS: Final = ("skip_steps", "warm_steps", "active_steps")
_DEFAULTS: Final = ToolOptions()


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A profiler."""

    name: str
    about: str
    package: str
    """How to install it."""
    programs: tuple[str, ...] = ()
    """Required executables, the tool's own first; empty for torch.profiler."""
    places: tuple[str, ...] = ()
    """Folders to search in addition to PATH."""
    version_words: tuple[str, ...] = ("--version",)
    supported_options: tuple[str, ...] = ()
    """Supported fields of ToolOptions."""
    command: Callable[[str, Job], ToolCommand]
    """Build the command from the path of the executable."""
    collect: Callable[[InstalledTool, Job], Collected]
    check: Callable[[InstalledTool, Job], None] = lambda _installed, _job: None
    """Raise if the system does not permit the tool; called before the program starts."""
    explain_failure: Callable[[Job], None] = lambda _job: None
    """Raise if the tool failed and not the program."""


def check_options(tool: Tool, options: ToolOptions) -> None:
    """Raise UsageError for an option that the tool does not support."""
    for item in fields(ToolOptions):
        chosen = getattr(options, item.name) != getattr(_DEFAULTS, item.name)
        if chosen and item.name not in tool.supported_options:
            names = ", ".join(OPTION_NAMES[name] for name in tool.supported_options)
            raise UsageError(
                f"{OPTION_NAMES[item.name]} is not supported by --tool {tool.name}",
                hint=f"supported options: {names}",
            )


def find_tool(tool: Tool, path: str) -> tuple[InstalledTool | None, str]:
    """Return the installed tool, or None and the reason."""
    if not tool.programs:
        return InstalledTool(path=""), ""
    folders = os.pathsep.join((path, *tool.places))
    paths = {name: shutil.which(name, path=folders) for name in tool.programs}
    missing = [name for name, executable in paths.items() if executable is None]
    if missing:
        return None, f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    program = str(paths[tool.programs[0]])
    try:
        completed = capture([program, *tool.version_words], limit_s=_VERSION_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{program} cannot be run: {error}"
    lines = [
        line.strip() for line in (completed.stdout or completed.stderr).splitlines() if line.strip()
    ]
    if completed.returncode != 0:
        output = " / ".join(lines[:3]) or "no output"
        return None, f"{program} exited with code {completed.returncode}: {output}"
    # Some tools print a banner before the version.
    numbered = [
        line for line in lines if re.search(r"\d", line) and "copyright" not in line.lower()
    ]
    return InstalledTool(path=program, version=next(iter((*numbered, *lines)), "")), ""


def library_path(job: Job) -> tuple[tuple[str, str], ...]:
    """Return LD_LIBRARY_PATH with torch's libraries first, for tools that load them."""
    if job.facts.library_folder is None:
        return ()
    inherited = job.environment.get("LD_LIBRARY_PATH", "")
    return (("LD_LIBRARY_PATH", job.facts.library_folder + (f":{inherited}" if inherited else "")),)


def thread_variables(count: int | None) -> tuple[tuple[str, str], ...]:
    """Return the variables that set the thread count of torch's libraries."""
    return () if count is None else tuple((name, str(count)) for name in THREAD_VARIABLES)


def escaped_path(path: Path) -> str:
    """Escape a path for tools that expand %p and %q{VARIABLE} in file names."""
    return str(path).replace("%", "%%")


def shell_text(command: ToolCommand, folder: Path) -> str:
    """Return one shell line that creates the folder and files and runs the tool."""
    steps = [shlex.join(("mkdir", "-p", str(folder)))]
    steps += [
        f"printf %s {shlex.quote(text)} > {shlex.quote(path)}" for path, text in command.files
    ]
    variables = [f"{name}={value}" for name, value in command.variables]
    steps.append(shlex.join((*(("env", *variables) if variables else ()), *command.words)))
    return " && ".join(steps)


PLAN_FILE: Final = "range.plan.json"
RANGE_FILE: Final = "range.json"


def step_range_command(
    job: Job, switch: str
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the command line that records some steps only, and the files it needs."""
    options = job.options
    plan = {
        "tool": "range",
        "switch": switch,
        "output": str(job.folder / RANGE_FILE),
        "tool_options": {name: getattr(options, name) for name in STEPS},
    }
    path = str(job.folder / PLAN_FILE)
    return job.inside_worker(path), ((path, json.dumps(plan)),)


def program_command(
    job: Job, *range_options: str
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the command line of the program (in the worker to record some steps), its files, and range options."""
    if not job.options.records_some_steps:
        return job.program, (), ()
    return (*step_range_command(job, "cuda"), range_options)


def recorded_steps_of(job: Job) -> Collected:
    """Return the steps that the worker recorded; empty if the program ran without it."""
    try:
        data = _range_record(job)
        return Collected(
            steps=int(data["steps"]),
            recorded_steps=int(data["recorded_steps"]),
            state=str(data["state"]),
            notes=tuple(str(note) for note in data["notes"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Collected()


def program_pid(job: Job) -> int | None:
    """Return the process id of the program; None if the worker wrote no file."""
    try:
        return int(_range_record(job)["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _range_record(job: Job) -> Any:
    return json.loads((job.folder / RANGE_FILE).read_bytes())


_SCALES: Final = {
    unit: scale
    for units, scale in (
        (("ns", "nsecond", "nanosecond"), 1.0),
        (("us", "usecond", "microsecond"), 1e3),
        (("ms", "msecond", "millisecond"), 1e6),
        (("s", "second"), 1e9),
    )
    for unit in units
}


class Columns(NamedTuple):
    """Column names of a table."""

    name: str
    time: str
    calls: str | None = None
    """None if each line is one call."""


def query_kernels(
    command: Sequence[str], columns: Columns, *, tool: str, limit_s: float
) -> tuple[tuple[CostRow, ...], tuple[str, ...]]:
    """Run a tool's export command; return its kernels, and notes if it failed or has none."""
    try:
        completed = capture(command, limit_s=limit_s)
    except (OSError, subprocess.SubprocessError) as error:
        return (), (f"cannot export the {tool} report: {error}",)
    rows = kernel_rows(completed.stdout.splitlines(), columns)
    message = completed.stderr.strip()[:300]
    if completed.returncode != 0:
        return rows, (f"{tool} exited with code {completed.returncode}: {message}".rstrip(": "),)
    return rows, () if rows else (f"{tool} recorded no kernels: {message}".rstrip(": "),)


def kernel_rows(lines: Iterable[str], columns: Columns) -> tuple[CostRow, ...]:
    """Return kernels sorted by device time; lines before the header are skipped."""
    table = csv.reader(lines)
    header: list[str] = []
    scale = 1.0
    calls: dict[str, int] = {}
    times: dict[str, float] = {}
    for cells in table:
        if not header:
            if columns.name in cells and columns.time in cells:
                header = cells
            continue
        row = dict(zip(header, cells, strict=False))
        name, time = row.get(columns.name, ""), row.get(columns.time, "").replace(",", "")
        if not name:
            # ncu prints a line with units below the header.
            scale = nanoseconds(row.get(columns.time, ""))
            continue
        try:
            times[name] = times.get(name, 0.0) + float(time) * scale
            count = row.get(columns.calls, "0") if columns.calls else "1"
            calls[name] = calls.get(name, 0) + int(count.replace(",", ""))
        except ValueError:
            continue
    rows = (
        CostRow(name=name, calls=calls.get(name), self_device_cost=time, total_device_cost=time)
        for name, time in times.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.self_device_cost))


def nanoseconds(unit: str) -> float:
    """Return the length of a time unit in nanoseconds; 1 for an unknown unit."""
    return _SCALES.get(unit.strip().lower(), 1.0)
