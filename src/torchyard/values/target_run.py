"""Run a program in its target with or without value profiling, and read what a native run reports.

The process keeps its own output, signals and exit code. A native run (without value profiling)
reports which operators ran, how long they took at chosen call sites, and how long a step took.
Independent of findings.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from torchyard.core.records import decode, encode
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.process.programs import PROGRAM_ENTRY, wait_passing_signals
from torchyard.process.start import LaunchSpec, prepare
from torchyard.results.directory import home_folder
from torchyard.values.model import ProfileRequest

_LEAST_LIMIT_S: Final = 120.0
_LIMIT_FACTOR: Final = 3.0


@dataclass(frozen=True, kw_only=True)
class ProgramEnd:
    """How the program's process ended, and where its result is."""

    exit_code: int
    """As in a shell: 128 plus the number of the signal after a signal."""
    output: Path
    interrupted: bool = False


def run_in_target(
    request: ProfileRequest,
    folder: Path,
    *,
    name: str = "profiled",
    silent: bool = False,
    limit_s: float | None = None,
    working_folder: Path | None = None,
    parts: Path | None = None,
    **plan: Any,
) -> ProgramEnd:
    """Run the program once; `plan` has further settings for the worker.

    A `silent` run, which the user did not request, reads and prints nothing. A run that exceeds the
    time limit is ended. With `parts`, child processes write their results to that folder.
    """
    if request.program and request.program[0] != "-m" and not Path(request.program[0]).is_file():
        raise UsageError(
            f"there is no file {request.program[0]}", hint="give the path of a Python script"
        )
    output = folder / f"{name}.json"
    if parts is not None:
        parts.mkdir(exist_ok=True)
    plan_file = folder / f"{name}.plan.json"
    plan_file.write_text(
        json.dumps(
            {
                "options": asdict(request.options),
                "output": str(output.absolute()),
                "parts": str(parts.absolute()) if parts is not None else None,
                "ranks": request.ranks,
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
    ready = prepare(spec, launch_mark=secrets.token_hex(8), entry=PROGRAM_ENTRY)
    command = [ready.python, str(PROGRAM_ENTRY), str(plan_file), "--", *request.program]
    process = subprocess.Popen(
        command,
        env=dict(ready.environment),
        cwd=working_folder,
        stdin=subprocess.DEVNULL if silent else None,
        stdout=_stdout(request, silent),
        stderr=subprocess.DEVNULL if silent else None,
    )
    code, interrupted = wait_passing_signals(process, limit_s=limit_s)
    return ProgramEnd(exit_code=code, output=output, interrupted=bool(interrupted))


def run_natively(
    request: ProfileRequest,
    folder: Path,
    *,
    name: str,
    profiled_s: float,
    launch: Callable[..., ProgramEnd] = run_in_target,
    **plan: Any,
) -> NativeRun | None:
    """Run the program again without value profiling, silently; None without a readable result."""
    end = launch(
        request,
        folder,
        name=name,
        silent=True,
        limit_s=max(_LEAST_LIMIT_S, _LIMIT_FACTOR * profiled_s),
        native=True,
        **{"wanted": [], **plan},
    )
    try:
        return read_native_run(end.output)
    except ResultsDamaged:
        return None


def _stdout(request: ProfileRequest, silent: bool) -> int | None:
    if silent:
        return subprocess.DEVNULL
    return sys.stderr.fileno() if request.quiet_program else None


FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class CountedChain:
    """A chain of nested operators, and how often the innermost one ran there."""

    chain: tuple[str, ...]
    count: int


@dataclass(frozen=True, kw_only=True)
class SiteTime:
    """Times of an operator at one call site, in the program itself."""

    operator: str
    file: str
    line: int
    backward: bool
    shapes: str
    """`*` for all calls on the line, whatever their shapes."""
    calls: int
    wall_ns: tuple[float, ...] = ()
    """Means of groups of calls in order of time, each without its slowest calls."""
    cpu_ns: tuple[float, ...] = ()
    wall_most_ns: float = 0.0
    """The largest mean of a group, with its slowest calls."""
    cpu_most_ns: float = 0.0
    faults: float = 0.0
    """Page faults of one call."""
    made_bytes: float = 0.0
    """New memory of one call."""
    touched_bytes: float = 0.0
    before_ns: float = 0.0
    """CPU time of Python from the operator before to a call, and from a call to the one after it."""
    after_ns: float = 0.0


@dataclass(frozen=True, kw_only=True)
class NativeRun:
    """One run of the program without value profiling."""

    format: int
    state: str
    exit_code: int = 0
    steps: int = 0
    recorded_steps: int = 0
    """Steps during which events were recorded."""
    recorded_whole: bool = False
    """Whether events were recorded to the end, so that no time is free of that overhead."""
    step_ns: float | None = None
    """Median of the steps without recording or timers."""
    step_cpu_ns: float | None = None
    timed_steps: int = 0
    steps_ns: tuple[float, ...] = ()
    """Each of these steps."""
    steps_cpu_ns: tuple[float, ...] = ()
    sites: tuple[SiteTime, ...] = ()
    """Operators that were timed where the program calls them."""
    site_steps: int = 0
    """Steps in which they were timed."""
    other_ns: float = 0.0
    """CPU time of long operators at other sites, in all of these steps."""
    costs: dict[str, float] = field(default_factory=dict)
    """Of what surrounds operators on this machine (`worker/values/pricing/site_times.py`)."""
    turns_ns: tuple[tuple[float, float], ...] = ()
    """Pairs of steps: with gradients set to zero, with gradients set to None."""
    program_ns: float = 0.0
    program_cpu_ns: float = 0.0
    program_waited_ns: float = 0.0
    """How long the main thread was ready to run and waited for a core."""
    step_faults: float | None = None
    """Largest number of page faults in one of these steps; below, those of the program."""
    program_faults: float = 0.0
    probes_ns: tuple[float, ...] = ()
    """CPU time of a fixed piece of work before and after each timed run, which shows how much the speed
    of the machine changed between them."""
    threads: int = 0
    accelerated: bool = False
    """Whether a GPU was used, so that CPU time does not measure a step."""
    fix_matched: int = 0
    """Calls that the applied fix concerns, and calls that it changed."""
    fix_applied: int = 0
    by_cpu: bool = False
    """Whether times of a run with a fix are CPU time."""
    loaded_files: tuple[str, ...] = ()
    """Source files of the program, if seeds and memory were chosen (`worker/values/pricing/checked_run.py`)."""
    observed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Results that the program showed (`worker/values/pricing/applied_fix.py`)."""
    chains: tuple[CountedChain, ...] = ()
    notes: tuple[str, ...] = ()

    def occurrences(self, chain: tuple[str, ...]) -> int:
        """Return how often a chain ran, possibly inside autograd nodes and wrappers."""
        return sum(item.count for item in self.chains if item.chain[-len(chain) :] == chain)


def read_native_run(path: Path) -> NativeRun:
    """Return the result of a native run; raise ResultsDamaged if it is missing or unreadable."""
    try:
        data = json.loads(path.read_bytes())
        run = decode(
            NativeRun,
            {key: value for key, value in data.items() if value is not None},
            where=str(path),
            strict=False,
        )
    except (OSError, ValueError, AttributeError, UsageError) as error:
        raise ResultsDamaged(f"{path} cannot be read: {error}", hint="run it again") from error
    if run.format > FORMAT:
        raise ResultsDamaged(f"{path} is of a newer format ({run.format})", hint="update Torchyard")
    return run
