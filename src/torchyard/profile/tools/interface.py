"""What a profiler module provides: its programs, its command line, and how to read its output.

A tool is one sibling module with a `TOOL`. It makes command lines and reads files;
`profile/tool_run.py` starts the program. Also here, because every tool builds on it: facts about
the target, queried without importing torch, and the worker plan that switches an external tool on
for some steps only.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from torchyard.errors import UsageError, WorkerFailed
from torchyard.profile.model import CostRow, CounterValue, KeptFile, StackCost

_LIMIT_S: Final = 60.0
# find_spec of a top-level module runs nothing of it. The working folder is taken off the path first:
# a folder called `torch` there is not the target's.
_QUESTION: Final = """
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
    """An interpreter and where its torch is."""

    python_version: tuple[int, ...] = ()
    torch_folder: str | None = None
    perf_trampoline: bool = False
    """Whether this Python can tell perf the names of Python functions."""

    @property
    def library_folder(self) -> str | None:
        """Where torch's libraries are."""
        return None if self.torch_folder is None else str(Path(self.torch_folder) / "lib")


def ask_target(python: str, environment: Mapping[str, str]) -> TargetFacts:
    """Start the interpreter once, shortly."""
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        places = answer["torch"]
        return TargetFacts(
            python_version=tuple(int(part) for part in answer["version"]),
            torch_folder=str(places[0]) if places else None,
            perf_trampoline=bool(answer["trampoline"]),
        )
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, KeyError) as error:
        raise WorkerFailed(
            f"the interpreter {python} does not answer",
            why=f"{type(error).__name__}: {error}",
            hint="`torchyard target` tells more about it",
        ) from error


THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_VERSION_LIMIT_S: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """What the user may choose; each tool takes what it understands."""

    shapes: bool = True
    memory: bool = True
    stacks: bool = False
    skip_steps: int = 0
    warm_steps: int = 0
    active_steps: int = 0
    """Steps to record; 0 for all that follow."""
    most_s: float = 60.0
    """Stop recording after so long."""
    frequency_hz: int = 199
    """Samples in a second. Not a round number, so that it does not beat with timers."""
    events: tuple[str, ...] = ()
    call_graph: str = "fp"
    launches: int = 100
    """Kernels that ncu looks at: it runs each of them many times."""
    threads: int | None = None
    knobs: tuple[tuple[str, str], ...] = ()
    extra: tuple[str, ...] = ()
    """Words handed to the tool as they are."""

    @property
    def ranged(self) -> bool:
        """Whether only some of the steps are wanted."""
        return bool(self.skip_steps or self.warm_steps or self.active_steps)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One program in one target, and where results go."""

    python: str
    words: tuple[str, ...]
    """`SCRIPT ARGUMENTS...` or `-m MODULE ARGUMENTS...`."""
    folder: Path
    facts: TargetFacts
    options: ToolOptions = field(default_factory=ToolOptions)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the target, before the tool adds to it."""
    entry: str = ""
    """The file of ours that runs a program inside a target."""

    @property
    def program(self) -> tuple[str, ...]:
        """The program as Python runs it."""
        return (self.python, *self.words)

    def surrounded(self, plan: str) -> tuple[str, ...]:
        """The program as our worker runs it, with the plan's surrounding."""
        return (self.python, self.entry, plan, "--", *self.words)


@dataclass(frozen=True, kw_only=True)
class ToolCommand:
    """What to run."""

    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """(path, text) to write before."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FoundTool:
    """A tool that is installed and answers."""

    path: str
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a tool's files say."""

    rows: tuple[CostRow, ...] = ()
    unit: str = "ns"
    row_kind: str = "operator"
    recorded_ns: float = 0.0
    steps: int = 0
    recorded_steps: int = 0
    peak_memory_bytes: int = 0
    peak_device_bytes: int = 0
    counters: tuple[CounterValue, ...] = ()
    stacks: tuple[StackCost, ...] = ()
    files: tuple[KeptFile, ...] = ()
    notes: tuple[str, ...] = ()
    tool_version: str = ""
    """Where only the target knows it."""
    state: str = ""
    """How the program ended, where the tool's files say so better than the exit code does."""


OPTION_NAMES: Final = {
    **{item.name: "--" + item.name.replace("_", "-") for item in fields(ToolOptions)},
    "most_s": "--limit",
    "frequency_hz": "--frequency",
    "events": "--event",
    "knobs": "--knob",
    "extra": "--tool-arg",
}
"""Field of ToolOptions -> what the user writes."""
STEPS: Final = ("skip_steps", "warm_steps", "active_steps")
_DEFAULTS: Final = ToolOptions()


def _nothing_to_check(_found: FoundTool, _job: Job) -> None:
    """Most tools find out for themselves."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A profiler."""

    name: str
    about: str
    package: str
    """What to install, and where it comes from."""
    programs: tuple[str, ...] = ()
    """Its program and those it cannot do without; none for what runs inside the target."""
    places: tuple[str, ...] = ()
    """Folders to look into besides the PATH."""
    version_words: tuple[str, ...] = ("--version",)
    takes: tuple[str, ...] = ()
    """Fields of ToolOptions that mean something to it."""
    command: Callable[[str, Job], ToolCommand]
    """From the path of the program."""
    collect: Callable[[FoundTool, Job], Collected]
    check: Callable[[FoundTool, Job], None] = _nothing_to_check
    """Raises when the system would refuse it, before the program is started."""
    explain_failure: Callable[[Job], None] = lambda _job: None
    """Raises when it was the tool that failed, not the program."""


def refuse_options(tool: Tool, options: ToolOptions) -> None:
    """Raise UsageError for an option that the tool would silently leave out."""
    for item in fields(ToolOptions):
        chosen = getattr(options, item.name) != getattr(_DEFAULTS, item.name)
        if chosen and item.name not in tool.takes:
            names = ", ".join(OPTION_NAMES[name] for name in tool.takes)
            raise UsageError(
                f"{tool.name} has no use for {OPTION_NAMES[item.name]}",
                hint=f"it takes {names}",
            )


def find_tool(tool: Tool, path: str) -> tuple[FoundTool | None, str]:
    """The tool, or None and what is missing."""
    if not tool.programs:
        return FoundTool(path=""), ""
    folders = os.pathsep.join((path, *tool.places))
    found = [shutil.which(name, path=folders) for name in tool.programs]
    missing = [name for name, place in zip(tool.programs, found, strict=True) if place is None]
    if missing:
        return None, f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    program = str(found[0])
    try:
        done = subprocess.run(
            [program, *tool.version_words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_VERSION_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{program} cannot be run: {error}"
    said = [line.strip() for line in (done.stdout or done.stderr).splitlines() if line.strip()]
    if done.returncode != 0:
        return None, f"{program} does not run: {' / '.join(said[:3]) or 'it says nothing'}"
    return FoundTool(path=program, version=_version_line(said)), ""


def _version_line(lines: list[str]) -> str:
    """The line that has the version: some tools begin with a banner."""
    for line in lines:
        if any(char.isdigit() for char in line) and "copyright" not in line.lower():
            return line
    return lines[0] if lines else ""


def library_path(job: Job) -> tuple[tuple[str, str], ...]:
    """LD_LIBRARY_PATH with torch's libraries first, as tools need it that load them themselves."""
    if job.facts.library_folder is None:
        return ()
    before = job.environment.get("LD_LIBRARY_PATH", "")
    return (("LD_LIBRARY_PATH", job.facts.library_folder + (f":{before}" if before else "")),)


def thread_variables(count: int | None) -> tuple[tuple[str, str], ...]:
    """Variables that set the number of threads of torch's libraries."""
    return () if count is None else tuple((name, str(count)) for name in THREAD_VARIABLES)


def plain_path(path: Path) -> str:
    """A path for tools that read %p, %q{VARIABLE} and the like in names of files."""
    return str(path).replace("%", "%%")


def shell_text(command: ToolCommand, folder: Path) -> str:
    """The command for a shell: makes the folder and the files it needs, then runs the tool."""
    steps = [shlex.join(("mkdir", "-p", str(folder)))]
    steps += [
        f"printf %s {shlex.quote(text)} > {shlex.quote(path)}" for path, text in command.files
    ]
    variables = [f"{name}={value}" for name, value in command.variables]
    steps.append(shlex.join((*(("env", *variables) if variables else ()), *command.words)))
    return " && ".join(steps)


PLAN_FILE: Final = "range.plan.json"
RANGE_FILE: Final = "range.json"


def range_program(job: Job, switch: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The words that run the program, and the files they need."""
    options = job.options
    plan = {
        "tool": "range",
        "switch": switch,
        "output": str(job.folder / RANGE_FILE),
        "tool_options": {
            "skip_steps": options.skip_steps,
            "warm_steps": options.warm_steps,
            "active_steps": options.active_steps,
        },
    }
    path = str(job.folder / PLAN_FILE)
    return job.surrounded(path), ((path, json.dumps(plan)),)


def ranged(job: Job) -> Collected:
    """What the worker says of steps; nothing when the program ran without it."""
    try:
        data: Any = json.loads((job.folder / RANGE_FILE).read_bytes())
        return Collected(
            steps=int(data["steps"]),
            recorded_steps=int(data["recorded_steps"]),
            state=str(data["state"]),
            notes=tuple(str(note) for note in data["notes"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Collected()


def range_pid(job: Job) -> int | None:
    """The process of the program; None when its worker wrote nothing."""
    try:
        return int(json.loads((job.folder / RANGE_FILE).read_bytes())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
