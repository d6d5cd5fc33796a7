"""Memory and time of every compile: the log of the meter, and the history of this machine.

A damaged line of the log (full disk, power loss) is skipped and counted. The history is one small
JSON file per component. It only improves estimates, so it never fails a build: a damaged file
counts as none, and a file that cannot be written is not written.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from torchyard.builds.build_folders import BuildsDirectory, open_lock_file
from torchyard.builds.meter.compiler_launcher import UNIT_MIB
from torchyard.builds.plan import Component, Plan
from torchyard.builds.recipe import Recipe
from torchyard.errors import TorchyardError, UsageError
from torchyard.files.safe_writing import replace_file
from torchyard.machine.facts.isolation import MachineLimits

_MIB: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Compile:
    """One run of a compiler, from its start to its end."""

    output: str
    """Absolute."""
    source: str
    """As on the command line; empty for a link."""
    kind: Literal["compile", "link"]
    language: str
    tool: str
    """Program that was started: a compiler or a compiler cache."""
    start_s: float
    """Seconds since 1970."""
    end_s: float
    wall_s: float
    cpu_s: float
    peak_mib: float
    """Of the largest single process (the compiler proper), not of driver and assembler together."""
    waited_s: float
    """Time until a job slot and the memory were free."""
    expected_mib: int
    status: int
    """Exit status; -1 when a signal ended it."""
    signal: int
    attempt: int
    out_of_memory: bool
    retried: bool
    """It was killed for lack of memory, and is retried alone."""

    @property
    def name(self) -> str:
        """Base name of the output."""
        return Path(self.output).name

    @property
    def succeeded(self) -> bool:
        """Whether the compiler succeeded."""
        return self.status == 0


@dataclass(frozen=True, kw_only=True)
class MeterLog:
    """Content of a meter log."""

    compiles: tuple[Compile, ...] = ()
    """Ordered by end time."""
    unfinished: tuple[str, ...] = ()
    """Outputs whose last compile was interrupted or failed: they may be incomplete."""
    damaged_lines: int = 0

    @property
    def cpu_s(self) -> float:
        """User and system time of all compiles."""
        return sum(compile_.cpu_s for compile_ in self.compiles)

    @property
    def peak_mib(self) -> float:
        """Peak memory of the largest compile."""
        return max((compile_.peak_mib for compile_ in self.compiles), default=0.0)

    def since(self, start_s: float) -> MeterLog:
        """Return only the compiles started at or after a time (seconds since 1970)."""
        return replace(self, compiles=tuple(one for one in self.compiles if one.start_s >= start_s))

    def made(self) -> MeterLog:
        """Return the last successful compile or link of each output that exists."""
        last = {one.output: one for one in self.compiles if one.succeeded}
        existing = (one for one in last.values() if Path(one.output).exists())
        return replace(self, compiles=tuple(existing))

    @property
    def busy_s(self) -> float:
        """Wall time during which at least one compile ran, over all runs."""
        total = until = 0.0
        for start_s, end_s in sorted((one.start_s, one.end_s) for one in self.compiles):
            total += max(end_s - max(start_s, until), 0.0)
            until = max(until, end_s)
        return total


def read_meter_log(path: Path) -> MeterLog:
    """Read a log; a missing file is an empty log."""
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return MeterLog()
    compiles: list[Compile] = []
    open_outputs: dict[str, str] = {}
    failed: dict[str, None] = {}
    damaged = 0
    for line in text.split("\n"):
        if not line:
            continue
        try:
            record = json.loads(line)
            name, output = str(record["id"]), str(record["output"])
            if record["event"] == "begin":
                open_outputs[name] = output
                failed.pop(output, None)
                continue
            compile_ = _compile(record)
        except (ValueError, KeyError, TypeError):
            damaged += 1
            continue
        compiles.append(compile_)
        open_outputs.pop(name, None)
        # A later success supersedes an earlier interruption of the same output.
        open_outputs = {key: value for key, value in open_outputs.items() if value != output}
        if compile_.succeeded:
            failed.pop(output, None)
        else:
            failed[output] = None
    unfinished = dict.fromkeys([*failed, *open_outputs.values()])
    return MeterLog(compiles=tuple(compiles), unfinished=tuple(unfinished), damaged_lines=damaged)


def remove_unfinished(log: MeterLog, *, below: Path | None = None) -> tuple[Path, ...]:
    """Delete incomplete outputs, so that make does not treat them as finished.

    Only regular files (a compile may have used `-o /dev/null`), and only below the given folder.
    """
    removed: list[Path] = []
    for output in log.unfinished:
        path = Path(output)
        try:
            if below is not None and not path.parent.resolve().is_relative_to(below.resolve()):
                continue
            if stat.S_ISREG(path.lstat().st_mode):
                path.unlink()
                removed.append(path)
        except (OSError, ValueError):
            # Already removed (by the compiler), or not writable.
            continue
    return tuple(removed)


def _compile(record: dict[str, Any]) -> Compile:
    kind: Literal["compile", "link"] = "link" if record["kind"] == "link" else "compile"
    return Compile(
        output=str(record["output"]),
        source=str(record["source"]),
        kind=kind,
        language=str(record["language"]),
        tool=str(record["tool"]),
        start_s=float(record["start"]),
        end_s=float(record["end"]),
        wall_s=float(record["wall_s"]),
        cpu_s=float(record["user_s"]) + float(record["system_s"]),
        peak_mib=int(record["rss_kib"]) / _MIB,
        waited_s=float(record["waited_s"]),
        expected_mib=int(record["expected_mib"]),
        status=int(record["status"]),
        signal=int(record["signal"]),
        attempt=int(record["attempt"]),
        out_of_memory=bool(record["out_of_memory"]),
        retried=bool(record["retried"]),
    )


_FORMAT: Final = 1
_MAX_FILES: Final = 20_000
_MAX_STEPS: Final = 40
_MAX_POINTS: Final = 120
_TABLE_MARGIN: Final = 1.1
"""Files grow from release to release, and ru_maxrss excludes driver and assembler."""
_DECAY: Final = 0.25
"""Fraction by which a larger recorded peak decreases towards each new measurement."""
_HIT_MIB: Final = 16.0
"""Below the memory of a real compile: gcc 12 takes 20 MiB for a one-line C file, and ccache 4.7
takes 4 MiB for a hit (measured)."""
_HIT_CPU_SHARE: Final = 0.5
_REMOTE_TOOLS: Final = {"sccache", "distcc", "icecc"}
"""Their compiles run in another process than the one that the meter measures."""
_PROBES: Final = re.compile(r"/CMakeFiles/CMake(Tmp|Scratch)/|/cmTC_[^/]*$|/TryCompile-|/conftest")


class FileCost(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Cost of compiling one file of a component; a list in the file, where there may be thousands."""

    peak_mib: float
    cpu_s: float
    copies: int = 1
    """Number of outputs with this base name in one build."""
    seen: int = 0
    """Day of the last measurement; the oldest entries are dropped."""


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Progress of a step at a time: steps done in its n-th counted build."""

    build: int
    done: int
    total: int
    """0 if the build reported no total."""
    elapsed_s: float


@dataclass(frozen=True, kw_only=True)
class StepRun:
    """One complete run of a step."""

    wall_s: float
    jobs: int = 0
    cpu_s: float = 0.0
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ComponentHistory:
    """Recorded costs of a component."""

    files: Mapping[str, FileCost] = field(default_factory=dict)
    """By base name of the output."""
    steps: Mapping[str, StepRun] = field(default_factory=dict)
    """The last complete run of each step."""

    @property
    def cpu_s(self) -> float:
        """CPU time of compiling all recorded files."""
        return sum(cost.cpu_s * cost.copies for cost in self.files.values())

    def needs_mib(self) -> dict[str, int]:
        """Return the memory to reserve for each file, with a margin."""
        return {
            name: max(math.ceil(cost.peak_mib * _TABLE_MARGIN), 1)
            for name, cost in self.files.items()
            if cost.peak_mib > 0
        }

    def peak_quantile_mib(self, share: float) -> float | None:
        """Return a quantile of the peaks of all files; None if nothing is recorded."""
        peaks = sorted(cost.peak_mib for cost in self.files.values() if cost.peak_mib > 0)
        return peaks[min(int(share * len(peaks)), len(peaks) - 1)] if peaks else None


@dataclass(frozen=True, kw_only=True)
class _HistoryFile(ComponentHistory):
    format: int


@dataclass(frozen=True, kw_only=True)
class History:
    """The folder with the histories of all components."""

    folder: Path

    def read(self, component: str) -> ComponentHistory:
        """Return the history of a component; empty if there is none or the file is damaged."""
        try:
            content = msgspec.json.decode(self._path(component).read_bytes(), type=_HistoryFile)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
            return ComponentHistory()
        if content.format != _FORMAT:
            return ComponentHistory()
        return ComponentHistory(files=content.files, steps=content.steps)

    def learn(self, component: str, log: MeterLog) -> bool:
        """Add the compiles of a log; return False if the history cannot be written."""
        return self._change(
            component, lambda history: replace(history, files=_merged(history.files, log))
        )

    def learn_step(self, component: str, step: str, run: StepRun) -> bool:
        """Record a complete run of a step; return False if the history cannot be written."""
        thinned = replace(run, curve=_thinned(run.curve))

        def add(history: ComponentHistory) -> ComponentHistory:
            steps = {name: other for name, other in history.steps.items() if name != step}
            newest = [*steps.items(), (step, thinned)][-_MAX_STEPS:]
            return replace(history, steps=dict(newest))

        return self._change(component, add)

    def _change(
        self, component: str, change: Callable[[ComponentHistory], ComponentHistory]
    ) -> bool:
        path = self._path(component)
        try:
            descriptor = open_lock_file(path.with_suffix(".lock"))
            try:
                # Locked, so that reading, merging and replacing is atomic.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                history = change(self.read(component))
                file = _HistoryFile(files=history.files, steps=history.steps, format=_FORMAT)
                replace_file(path, msgspec.json.encode(file).decode() + "\n")
            finally:
                os.close(descriptor)
        except (OSError, TorchyardError):
            return False
        return True

    def _path(self, component: str) -> Path:
        return self.folder / f"{quote(component, safe='')}.json"


def _merged(recorded: Mapping[str, FileCost], log: MeterLog) -> dict[str, FileCost]:
    files = dict(recorded)
    for name, compiles in _by_name(log).items():
        old = files.get(name)
        real = [one for one in compiles if not _is_hit(one, old)]
        if not real:
            continue
        peak = max(one.peak_mib for one in real)
        cpu = sum(one.cpu_s for one in real) / len(real)
        if old is not None:
            peak = max(peak, old.peak_mib - (old.peak_mib - peak) * _DECAY)
            cpu = (cpu + old.cpu_s) / 2
        copies = max(len({one.output for one in real}), old.copies if old else 1)
        today = int(time.time() // 86_400)
        files[name] = FileCost(
            peak_mib=round(peak, 1), cpu_s=round(cpu, 3), copies=copies, seen=today
        )
    if len(files) > _MAX_FILES:
        newest = sorted(files.items(), key=lambda item: item[1].seen, reverse=True)[:_MAX_FILES]
        files = dict(newest)
    return files


def _by_name(log: MeterLog) -> dict[str, list[Compile]]:
    """Return successful compiles, and those killed for lack of memory, by base name.

    Time and memory of other failed compiles do not represent the whole file; the memory of a killed
    one is a lower bound.
    """
    compiles: dict[str, list[Compile]] = {}
    for one in log.compiles:
        if (one.succeeded or one.out_of_memory) and not _PROBES.search(one.output):
            compiles.setdefault(one.name, []).append(one)
    return compiles


def _is_hit(one: Compile, old: FileCost | None) -> bool:
    if one.tool in _REMOTE_TOOLS:
        return True
    if one.tool != "ccache":
        return False
    return one.peak_mib < _HIT_MIB or (old is not None and one.cpu_s < old.cpu_s * _HIT_CPU_SHARE)


def _thinned(curve: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
    if len(curve) <= _MAX_POINTS:
        return curve
    last = len(curve) - 1
    picks = sorted({round(index * last / (_MAX_POINTS - 1)) for index in range(_MAX_POINTS)})
    return tuple(curve[index] for index in picks)


_GIB_MIB: Final = 1024
_MIN_MARGIN_MIB: Final = 1024
_MARGIN_SHARE: Final = 0.10
_ENOUGH_FILES: Final = 10
"""With fewer measured files, the estimate of the recipe is used."""
_MEASURED_MARGIN: Final = 1.1
_MIN_JOB_MIB: Final = 64


@dataclass(frozen=True, kw_only=True)
class JobChoice:
    """Number of parallel compiles, their memory, and the reason."""

    jobs: int
    memory_mib: int
    """Total memory of all compiles."""
    default_mib: int
    """Reserved for a file without a measurement."""
    why: str


def choose_jobs(
    *,
    requested: int | None,
    recipe: Recipe,
    history: ComponentHistory,
    limits: MachineLimits,
) -> JobChoice:
    """Return the requested number of jobs, else one per core, or fewer if memory is short."""
    margin = max(_MIN_MARGIN_MIB, round(limits.total_mib * _MARGIN_SHARE))
    # With less memory than the margin, small files can still be compiled one by one.
    memory = max(limits.available_mib - margin, limits.available_mib // 2, UNIT_MIB)
    ordinary, default, source = _job_memory(recipe, history)
    fitting = max(memory // ordinary, 1)
    jobs = requested if requested is not None else min(limits.cores, fitting)
    budget = (
        f"{_gib(memory)} for compiles ({_gib(limits.available_mib)} available "
        f"{limits.memory_why}, minus a margin of {_gib(limits.available_mib - memory)})"
    )
    each = f"{_gib(ordinary)} each, {source}"
    count = "1 job" if jobs == 1 else f"{jobs} jobs"
    if requested is not None:
        why = f"{count}, as requested: there are {limits.cores_why}, and {budget}, at {each}."
        if jobs > fitting:
            why += f" Memory suffices for {fitting} in parallel; the others wait for it."
    elif jobs < limits.cores:
        why = f"{count} on {limits.cores_why}, limited by memory: {budget}, at {each}."
    else:
        why = f"{count} for {limits.cores_why}: {budget}, at {each}, suffices for {fitting}."
    largest = max([*history.needs_mib().values(), *recipe.heavy.values(), 0])
    if largest * jobs > memory:
        why += f" Files that need more (up to {_gib(largest)}) wait until it is free."
    return JobChoice(jobs=jobs, memory_mib=memory, default_mib=default, why=why)


def _job_memory(recipe: Recipe, history: ComponentHistory) -> tuple[int, int, str]:
    """Return the memory of a typical and of an unknown compile, and the source of the numbers.

    Typical is the median: larger files reserve their measured amount. An unknown file gets the 90 %
    quantile.
    """
    measured = [cost for cost in history.files.values() if cost.peak_mib > 0]
    median, most = history.peak_quantile_mib(0.5), history.peak_quantile_mib(0.9)
    if median is None or most is None or len(measured) < _ENOUGH_FILES:
        estimate = max(recipe.job_memory_mib, _MIN_JOB_MIB)
        return estimate, estimate, "as estimated by the recipe"
    ordinary = max(math.ceil(median * _MEASURED_MARGIN), _MIN_JOB_MIB)
    default = max(math.ceil(most * _MEASURED_MARGIN), _MIN_JOB_MIB)
    return ordinary, default, f"as measured for {len(measured)} files"


def _gib(mib: int) -> str:
    return f"{mib / _GIB_MIB:.1f} GiB" if mib >= _GIB_MIB else f"{mib} MiB"


JOB_VARIABLES: Final = ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL")
"""Read by setup.py of PyTorch and torch.utils.cpp_extension; by CMake and scikit-build-core."""
_GENERIC: Final = "generic"
_JOBS: Final = re.compile(r"[0-9]{1,9}")
_MIN_REPORTED_S: Final = 60.0


def parse_jobs(text: str) -> int | None:
    """Parse `auto` (None) or a number of at least 1."""
    if text == "auto":
        return None
    jobs = int(text) if _JOBS.fullmatch(text) else 0
    most = max(1024, 8 * (os.cpu_count() or 1))
    if not 1 <= jobs <= most:
        raise UsageError(
            f"--jobs: {text[:80]!r} is neither auto nor a number from 1 to {most}",
            hint="use --jobs auto or --jobs 4",
        )
    return jobs


def history_name(plan: Plan, component: Component) -> str:
    """Return the name of the compile history of a component.

    Variants have separate histories, because debug information and other options change the memory.
    Builds of the generic recipe are identified by the name of the build.
    """
    recipe = component.recipe
    if recipe.name == _GENERIC:
        return f"{_GENERIC} {plan.name}"
    return f"{recipe.name} {recipe.variant}".strip()


def with_jobs(
    plan: Plan, requested: int | None, *, home: BuildsDirectory, limits: MachineLimits
) -> tuple[Plan, JobChoice]:
    """Return the plan with its job count, chosen for the component that needs the most memory."""
    largest = max(plan.components, key=lambda part: part.recipe.job_memory_mib)
    history = History(folder=home.history)
    choice = choose_jobs(
        requested=requested,
        recipe=largest.recipe,
        history=history.read(history_name(plan, largest)),
        limits=limits,
    )
    estimate = _estimate(plan, history, choice.jobs)
    variables = {
        **dict.fromkeys(JOB_VARIABLES, str(choice.jobs)),
        # torch.utils.cpp_extension would run a compiler cache before the meter, which treats the
        # meter of each build as another compiler and never hits.
        "TORCH_NO_COMPILER_WRAPPER": "1",
    }
    planned = replace(
        plan,
        jobs=choice.jobs,
        jobs_why=choice.why,
        runner_variables=variables,
        notes=(*plan.notes, *estimate),
    )
    return planned, choice


def _estimate(plan: Plan, history: History, jobs: int) -> tuple[str, ...]:
    """Return a note with the expected compile time, from measurements or recipes."""
    total_s, measured = 0.0, True
    for part in plan.components:
        recorded_s = history.read(history_name(plan, part)).cpu_s
        measured = measured and recorded_s > 0
        total_s += recorded_s or part.recipe.cpu_seconds
    if total_s < _MIN_REPORTED_S:
        return ()
    source = "measured here" if measured else "estimated by the recipes"
    minutes = total_s / jobs / 60
    return (
        (
            f"compiling everything takes about {total_s:.0f} s of CPU time ({source}): "
            f"{minutes:.0f} minutes with {jobs} jobs on idle cores"
        ),
    )
