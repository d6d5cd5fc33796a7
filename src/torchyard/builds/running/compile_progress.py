"""Progress and cost of compile steps: counts, remaining time, and the compile meter of each step.

`ProgressReader` parses ninja's `[12/345]`, the `[ 12%]` of CMake's Makefiles, and the command
lines of plain make and setuptools. `CompileMonitor` starts a compile step with the meter and the
compiler cache, follows its output, and stores its costs for the next build. It also removes copies
that an interrupted step left incomplete.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.meter.compile_costs import (
    JOB_VARIABLES,
    CurvePoint,
    History,
    JobChoice,
    StepRun,
    history_name,
    read_meter_log,
    remove_unfinished,
)
from torchyard.builds.meter.compiler_launcher import (
    CacheCounts,
    CacheDecision,
    cache_statistics,
    logged_counts,
    meter_variables,
    read_counts,
    step_variables,
    write_table,
)
from torchyard.builds.plan import BuildEvent, Component, Plan, Step
from torchyard.builds.recipe import Recipe
from torchyard.builds.record import StepTimes

_ESCAPES: Final = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
)
_LINE_ENDS: Final = re.compile(rb"[\r\n]+")
_COUNTED: Final = re.compile(rb"\s*\[\s*(\d{1,7})/(\d{1,7})\]")
_PERCENT: Final = re.compile(rb"\s*\[\s*(\d{1,3})%\]")
_COMPILE: Final = re.compile(
    rb"\s*(?:\S*/)?(?:[\w.]+-)*(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|gfortran|nvcc|hipcc)"
    rb"(?:-[\d.]+)?\s(?:.*\s)?-(?:c|dc)\s"
    rb"|\s*(?:CC|CXX|NVCC|\[(?:CC|CXX)\])\s+\S+\.\w+\s*$"
)
_LONGEST_LINE_BYTES: Final = 1 << 16
_WHOLE_PERCENT: Final = 100
_JITTER_PERCENT: Final = 5
"""Parallel make prints percentages slightly out of order."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Finished and total actions of the n-th build in a log."""

    done: int
    total: int | None
    """None: the build reports no total."""
    build: int = 0

    @property
    def fraction(self) -> float | None:
        """Finished fraction; None without a total."""
        return min(self.done / self.total, 1.0) if self.total else None


@dataclass(kw_only=True)
class _Build:
    style: str
    done: int
    total: int | None

    @property
    def finished(self) -> bool:
        return self.total is not None and self.done >= self.total


@dataclass
class ProgressReader:
    """Incremental parser of the output of a step, fed in chunks of any size.

    One log may hold several builds (third-party libraries first, or nested builds): the progress is
    that of the build that printed last.
    """

    _builds: list[_Build] = field(default_factory=list)
    _current: int = -1
    _rest: bytes = b""

    @property
    def progress(self) -> Progress | None:
        """Current progress; None before the first count."""
        if self._current < 0:
            return None
        build = self._builds[self._current]
        return Progress(done=build.done, total=build.total, build=self._current)

    def feed(self, output: bytes) -> None:
        """Parse the next chunk of output."""
        *lines, rest = _LINE_ENDS.split(self._rest + output)
        for line in lines:
            self._line(line)
        # Counts are at the start of a line; the limit keeps a binary dump from filling the memory.
        self._rest = rest[:_LONGEST_LINE_BYTES]

    def finish(self) -> None:
        """Parse the last line, which may lack its line end."""
        self._line(self._rest)
        self._rest = b""

    def _line(self, line: bytes) -> None:
        line = _ESCAPES.sub(b"", line)
        if counted := _COUNTED.match(line):
            done, total = int(counted[1]), int(counted[2])
            if 0 < total >= done:
                self._counted(done, total)
        elif percent := _PERCENT.match(line):
            if int(percent[1]) <= _WHOLE_PERCENT:
                self._percent(int(percent[1]))
        elif _COMPILE.match(line):
            self._uncounted()

    def _counted(self, done: int, total: int) -> None:
        """Attribute a count to the open build with the same total, else to the one it continues.

        Ninja lowers its total when outputs turn out unchanged, so the total alone does not identify
        a build.
        """
        open_builds = [
            (index, build)
            for index, build in enumerate(self._builds)
            if build.style == "counted" and not build.finished and build.done <= done
        ]
        same = [index for index, build in open_builds if build.total == total]
        follows = [index for index, build in open_builds if 0 < build.done == done - 1]
        chosen = (same or follows or [-1])[-1]
        if chosen < 0:
            self._begin("counted", done, total)
        else:
            self._current = chosen
            self._builds[chosen].done, self._builds[chosen].total = done, total

    def _percent(self, percent: int) -> None:
        build = self._builds[self._current] if self._builds else None
        if build is None or build.style != "percent" or percent < build.done - _JITTER_PERCENT:
            self._begin("percent", percent, _WHOLE_PERCENT)
        else:
            build.done = max(build.done, percent)

    def _uncounted(self) -> None:
        build = self._builds[self._current] if self._builds else None
        if build is not None and build.style != "plain" and not build.finished:
            return  # command line printed by a verbose counted build
        if build is None or build.style != "plain":
            self._begin("plain", 1, None)
        else:
            build.done += 1

    def _begin(self, style: str, done: int, total: int | None) -> None:
        self._builds.append(_Build(style=style, done=done, total=total))
        self._current = len(self._builds) - 1


_MIN_FRACTION: Final = 0.02
_MIN_DONE: Final = 5
_MIN_TIME_S: Final = 2.0
"""Below these, the rate of the build is too uncertain for an estimate."""
_FULL_WEIGHT_FRACTION: Final = 0.25
"""From this fraction of the earlier run on, the measured speed ratio has full weight."""
_SPEED_LIMITS: Final = (0.1, 10.0)


@dataclass
class RemainingTime:
    """Remaining-time estimate of a step, from its last complete run scaled by the present speed."""

    earlier: StepRun | None = None
    _points: list[CurvePoint] = field(default_factory=list)

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        """Progress over time of this run, for later estimates."""
        return tuple(self._points)

    def observe(self, progress: Progress, elapsed_s: float) -> None:
        """Record the progress at a time since the start of the step."""
        point = CurvePoint(
            build=progress.build,
            done=progress.done,
            total=progress.total or 0,
            elapsed_s=elapsed_s,
        )
        last = self._points[-1] if self._points else None
        if last is None or (last.build, last.done, last.total) != (
            point.build,
            point.done,
            point.total,
        ):
            self._points.append(point)

    def remaining_s(self, elapsed_s: float) -> float | None:
        """Return the estimated seconds until the step is done; None if unknown."""
        by_history = self._by_history(elapsed_s)
        return by_history if by_history is not None else self._by_rate(elapsed_s)

    def _by_history(self, elapsed_s: float) -> float | None:
        if self.earlier is None or self.earlier.wall_s <= 0:
            return None
        if not self._points or not self.earlier.curve:
            remaining = self.earlier.wall_s - elapsed_s
            return remaining if remaining > 0 else None
        first, last = self._points[0], self._points[-1]
        then, now = (
            _earlier_time(self.earlier.curve, first),
            _earlier_time(self.earlier.curve, last),
        )
        if now is None:
            return None
        remaining = max(self.earlier.wall_s - now, 0.0)
        speed = 1.0
        if then is not None and now > then and last.elapsed_s > first.elapsed_s:
            low, high = _SPEED_LIMITS
            measured = (last.elapsed_s - first.elapsed_s) / (now - then)
            weight = min((now - then) / self.earlier.wall_s / _FULL_WEIGHT_FRACTION, 1.0)
            speed += (min(max(measured, low), high) - 1.0) * weight
        return max(remaining * speed - (elapsed_s - last.elapsed_s), 0.0)

    def _by_rate(self, elapsed_s: float) -> float | None:
        """Extrapolate the present build; later builds of the same step are not included."""
        if not self._points or not self._points[-1].total:
            return None
        last = self._points[-1]
        first = next(point for point in self._points if point.build == last.build)
        done, duration = last.done - first.done, last.elapsed_s - first.elapsed_s
        if done < max(_MIN_DONE, last.total * _MIN_FRACTION) or duration < _MIN_TIME_S:
            return None
        remaining = (last.total - last.done) * duration / done
        return max(remaining - (elapsed_s - last.elapsed_s), 0.0)


def _earlier_time(curve: Sequence[CurvePoint], point: CurvePoint) -> float | None:
    """Return the time at which an earlier run had as much of this build left as `point` has.

    The remaining count is compared, because a resumed build counts only the rest.
    """
    build = _same_build(curve, point)
    if point.total:
        positions = [(other.done - other.total, other.elapsed_s) for other in build if other.total]
        present = point.done - point.total
    else:
        positions = [(other.done, other.elapsed_s) for other in build]
        present = point.done
    if not positions:
        return None
    before = [position for position in positions if position[0] <= present]
    after = [position for position in positions if position[0] >= present]
    if not before or not after:
        return (after or before)[0 if after else -1][1]
    (low, low_s), (high, high_s) = before[-1], after[0]
    fraction = (present - low) / (high - low) if high > low else 0.0
    return low_s + (high_s - low_s) * fraction


def _same_build(curve: Sequence[CurvePoint], point: CurvePoint) -> list[CurvePoint]:
    """Return the points of the earlier run's build that `point` belongs to.

    The build with the same total, else the one with the same index in the log, else the largest.
    """
    counted = [other for other in curve if bool(other.total) == bool(point.total)]
    if not counted:
        return []
    by_total = {other.build for other in counted if other.total == point.total}
    indexes = {other.build for other in counted}
    if by_total:
        build = point.build if point.build in by_total else min(by_total)
    elif point.build in indexes:
        build = point.build
    else:
        build = max(counted, key=lambda other: other.total).build
    return [other for other in counted if other.build == build]


ALWAYS_INSTALL: Final[Mapping[str, str]] = {"CMAKE_INSTALL_ALWAYS": "1"}
"""CMake 3.25 treats a file as installed if its time stamp differs by less than a second."""


def remove_partial_copies(component: Component) -> tuple[Path, ...]:
    """Remove the folders in which setuptools assembles the wheel; keep object files.

    `lib` is removed only where there is no CMakeCache.txt: CMake projects keep libraries there.
    """
    if component.recipe.builder != "python":
        return ()
    folder = Path(component.tree, component.recipe.python.build_folder)
    staging_folders = [*folder.glob("lib.*"), *folder.glob("bdist.*")]
    if not (folder / "CMakeCache.txt").exists():
        staging_folders += folder.glob("lib")
    for path in staging_folders:
        with suppress(OSError):  # the step itself will report the problem
            shutil.rmtree(path)
    return tuple(staging_folders)


_PROGRESS_INTERVAL_S: Final = 1.0


@dataclass(kw_only=True)
class _RunningStep:
    """Progress state of a running step."""

    begun: float
    since: float
    """Unix time of the first attempt: compiles of interrupted attempts count, too."""
    reported: float = 0.0
    reader: ProgressReader = field(default_factory=ProgressReader)
    remaining: RemainingTime = field(default_factory=RemainingTime)
    counts: CacheCounts | None = None
    cache_log: Path | None = None


@dataclass(kw_only=True)
class CompileMonitor:
    """Measures the compile steps of a build and reports their progress."""

    plan: Plan
    folder: BuildFolder
    choice: JobChoice
    history: History
    cache_for: Callable[[Step], tuple[CacheDecision, tuple[str, ...]]]
    """Returns the compiler cache of a step and the command prefix that enters its root folder."""
    passed: Mapping[str, str]
    """Variables of the user that every step inherits."""
    times: dict[str, StepTimes] = field(default_factory=dict)
    """Cost of each step of this run."""
    created_at: float = field(default_factory=time.time)
    """Unix time; a step whose first attempt is older was interrupted."""
    _running: dict[str, _RunningStep] = field(default_factory=dict)

    def begin(self, step: Step, since: float) -> Mapping[str, str]:
        """Prepare the meter and return the complete environment of the step's commands."""
        running = _RunningStep(begun=time.monotonic(), since=since)
        self._running[step.name] = running
        variables = {**self.passed, **dict(step.variables)}
        history = self.history.read(self._remembered(step))
        running.remaining = RemainingTime(earlier=history.steps.get(step.name))
        if since < self.created_at:
            variables |= ALWAYS_INSTALL
        if not step.compiles:
            return variables
        component = self.plan.component(step.component)
        recipe = component.recipe
        if since < self.created_at:
            remove_partial_copies(component)
        log = self.folder.meter_log(step.component)
        table = self.folder.meter / f"{step.component}.table"
        if log.exists():
            # make compares time stamps only, and would accept a partly written object file.
            remove_unfinished(read_meter_log(log), below=self.folder.folder)
        # Measurements, then the patterns of the recipe.
        write_table(table, {**history.needs_mib(), **recipe.heavy})
        decision, before = self.cache_for(step)
        variables |= meter_variables(
            self.folder.meter,
            jobs=self.choice.jobs,
            memory_mib=self.choice.memory_mib,
            masquerade=not _cmake_compiles(recipe),
            cache=decision.choice,
            default_mib=self.choice.default_mib,
            path=variables.get("PATH", ""),
        )
        variables |= step_variables(log=log, table=table)
        variables |= self.plan.runner_variables
        if 0 < recipe.jobs < self.choice.jobs:
            variables |= dict.fromkeys(JOB_VARIABLES, str(recipe.jobs))
        if decision.choice is not None:
            running.counts = read_counts(decision.choice, variables=variables, before=before)
            running.cache_log = self.folder.meter / f"{step.component}.cache"
            running.cache_log.unlink(missing_ok=True)
            variables.setdefault("CCACHE_STATSLOG", str(running.cache_log))
        return variables

    def on_output(self, step: Step, output: bytes) -> BuildEvent | None:
        """Parse output; return a progress event at most once a second."""
        running = self._running[step.name]
        running.reader.feed(output)
        now = time.monotonic()
        progress = running.reader.progress
        if progress is None or now - running.reported < _PROGRESS_INTERVAL_S:
            return None
        running.reported = now
        elapsed_s = now - running.begun
        running.remaining.observe(progress, elapsed_s)
        return BuildEvent(
            kind="progress",
            step=step.name,
            done=progress.done,
            total=progress.total or 0,
            elapsed_s=elapsed_s,
            remaining_s=running.remaining.remaining_s(elapsed_s),
        )

    def end(self, step: Step, wall_s: float, *, whole: bool) -> None:
        """Store the cost of the step for later estimates."""
        running = self._running.pop(step.name)
        if not step.compiles or step.name.endswith("/configure"):
            # Compiles of the configure step are feature tests.
            self.times[step.name] = StepTimes(step=step.name, wall_s=wall_s)
            return
        log = read_meter_log(self.folder.meter_log(step.component))
        compiles = [
            compile_cost for compile_cost in log.compiles if compile_cost.start_s >= running.since
        ]
        self.history.learn(self._remembered(step), log)
        cpu_s = sum(compile_cost.cpu_s for compile_cost in compiles)
        if whole and compiles:
            run = StepRun(
                wall_s=wall_s, jobs=self.choice.jobs, cpu_s=cpu_s, curve=running.remaining.curve
            )
            self.history.learn_step(self._remembered(step), step.name, run)
        self.times[step.name] = StepTimes(
            step=step.name,
            wall_s=wall_s,
            cpu_s=cpu_s,
            compiles=len(compiles),
            peak_memory_mib=max((compile_cost.peak_mib for compile_cost in compiles), default=None),
            cache_hit_rate=self._hit_rate(step, running),
        )

    def _remembered(self, step: Step) -> str:
        parts = [part for part in self.plan.components if part.name == step.component]
        return history_name(self.plan, parts[0]) if parts else step.component

    def _hit_rate(self, step: Step, running: _RunningStep) -> float | None:
        logged = logged_counts(running.cache_log) if running.cache_log else None
        if logged is not None:
            return logged.rate
        if running.counts is None:
            return None
        decision, before = self.cache_for(step)
        if decision.choice is None:
            return None
        variables = {**self.passed, **dict(step.variables), **decision.choice.variables}
        after = read_counts(decision.choice, variables=variables, before=before)
        counted = cache_statistics(running.counts, after)
        return counted.rate if counted else None


def _cmake_compiles(recipe: Recipe) -> bool:
    return recipe.builder == "cmake" or (
        recipe.builder == "python" and recipe.python.compiles_with == "cmake"
    )
