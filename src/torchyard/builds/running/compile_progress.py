"""Progress and cost of compile steps: counts, remaining time, and the compile meter of each step.

`ProgressReader` understands ninja's `[12/345]`, the `[ 12%]` of CMake's Makefiles, and the command
lines of plain make and setuptools. `CompileWatch` starts a compile step with the meter and the
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
from torchyard.builds.meter import (
    meter_variables,
    read_meter_log,
    remove_unfinished,
    step_variables,
    write_table,
)
from torchyard.builds.meter.compile_costs import CurvePoint, History, StepRun
from torchyard.builds.meter.compiler_launcher import (
    CacheCounts,
    CacheDecision,
    cache_statistics,
    logged_counts,
    read_counts,
)
from torchyard.builds.meter.jobs import JobChoice, history_name, memory_table
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
"""Parallel makes print their percentages a little out of order."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """So many of so many, in the n-th counted build of a log."""

    done: int
    total: int | None
    """None: the build tells no total."""
    build: int = 0

    @property
    def fraction(self) -> float | None:
        """Share that is done; None without a total."""
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
    """Follows the output of a step, as it comes, in pieces of any size.

    One log may hold several builds (third-party libraries first, or one inside another): the
    progress is that of the build which spoke last.
    """

    _builds: list[_Build] = field(default_factory=list)
    _current: int = -1
    _rest: bytes = b""

    @property
    def progress(self) -> Progress | None:
        """Where the build is; None before the first count."""
        if self._current < 0:
            return None
        build = self._builds[self._current]
        return Progress(done=build.done, total=build.total, build=self._current)

    def feed(self, output: bytes) -> None:
        """Take the next piece of output."""
        *lines, rest = _LINE_ENDS.split(self._rest + output)
        for line in lines:
            self._line(line)
        # Nothing to be counted is that far into a line: a binary dump must not fill the memory.
        self._rest = rest[:_LONGEST_LINE_BYTES]

    def finish(self) -> None:
        """No more output comes: the last line counts without its end."""
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
        """Go on with the build of that total, else with the one whose count it follows.

        Ninja shortens its total when outputs turn out unchanged, so the total alone does not tell
        one build from another.
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
            return  # The command of a counted step, shown because the build is verbose.
        if build is None or build.style != "plain":
            self._begin("plain", 1, None)
        else:
            build.done += 1

    def _begin(self, style: str, done: int, total: int | None) -> None:
        self._builds.append(_Build(style=style, done=done, total=total))
        self._current = len(self._builds) - 1


_LEAST_SHARE: Final = 0.02
_LEAST_DONE: Final = 5
_LEAST_TIME_S: Final = 2.0
"""Before this much of a build is done, its own speed says nothing."""
_TRUST_SHARE: Final = 0.25
"""From this share of the earlier run on, this run's own speed counts fully."""
_SPEED_LIMITS: Final = (0.1, 10.0)


@dataclass
class RemainingTime:
    """When a step will be done: by its last whole run here, at the speed of this one."""

    earlier: StepRun | None = None
    _seen: list[CurvePoint] = field(default_factory=list)

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        """What to remember of this run."""
        return tuple(self._seen)

    def observe(self, progress: Progress, elapsed_s: float) -> None:
        """Progress at a time since the step began."""
        point = CurvePoint(
            build=progress.build,
            done=progress.done,
            total=progress.total or 0,
            elapsed_s=elapsed_s,
        )
        last = self._seen[-1] if self._seen else None
        if last is None or (last.build, last.done, last.total) != (
            point.build,
            point.done,
            point.total,
        ):
            self._seen.append(point)

    def remaining_s(self, elapsed_s: float) -> float | None:
        """Seconds until the step is done; None when nobody can tell."""
        by_history = self._by_history(elapsed_s)
        return by_history if by_history is not None else self._by_rate(elapsed_s)

    def _by_history(self, elapsed_s: float) -> float | None:
        if self.earlier is None or self.earlier.wall_s <= 0:
            return None
        if not self._seen or not self.earlier.curve:
            left = self.earlier.wall_s - elapsed_s
            return left if left > 0 else None
        first, last = self._seen[0], self._seen[-1]
        then, now = (
            _earlier_time(self.earlier.curve, first),
            _earlier_time(self.earlier.curve, last),
        )
        if now is None:
            return None
        left = max(self.earlier.wall_s - now, 0.0)
        speed = 1.0
        if then is not None and now > then and last.elapsed_s > first.elapsed_s:
            low, high = _SPEED_LIMITS
            measured = (last.elapsed_s - first.elapsed_s) / (now - then)
            trust = min((now - then) / self.earlier.wall_s / _TRUST_SHARE, 1.0)
            speed += (min(max(measured, low), high) - 1.0) * trust
        return max(left * speed - (elapsed_s - last.elapsed_s), 0.0)

    def _by_rate(self, elapsed_s: float) -> float | None:
        """From the present build alone; builds that come after it are not foreseen."""
        if not self._seen or not self._seen[-1].total:
            return None
        last = self._seen[-1]
        first = next(point for point in self._seen if point.build == last.build)
        done, took = last.done - first.done, last.elapsed_s - first.elapsed_s
        if done < max(_LEAST_DONE, last.total * _LEAST_SHARE) or took < _LEAST_TIME_S:
            return None
        left = (last.total - last.done) * took / done
        return max(left - (elapsed_s - last.elapsed_s), 0.0)


def _earlier_time(curve: Sequence[CurvePoint], point: CurvePoint) -> float | None:
    """When an earlier run had as much of this build left as `point` has.

    What is left is compared, not what is done: a build that is continued counts only the rest.
    """
    build = _same_build(curve, point)
    if point.total:
        places = [(other.done - other.total, other.elapsed_s) for other in build if other.total]
        here = point.done - point.total
    else:
        places = [(other.done, other.elapsed_s) for other in build]
        here = point.done
    if not places:
        return None
    before = [place for place in places if place[0] <= here]
    after = [place for place in places if place[0] >= here]
    if not before or not after:
        return (after or before)[0 if after else -1][1]
    (left, left_s), (right, right_s) = before[-1], after[0]
    share = (here - left) / (right - left) if right > left else 0.0
    return left_s + (right_s - left_s) * share


def _same_build(curve: Sequence[CurvePoint], point: CurvePoint) -> list[CurvePoint]:
    """The earlier run's build that this point belongs to.

    The one of the same total, else the one at the same place in the log, else the largest.
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


COPY_AGAIN: Final[Mapping[str, str]] = {"CMAKE_INSTALL_ALWAYS": "1"}
"""CMake takes a file whose time differs by less than a second for installed (seen with 3.25)."""


def remove_half_copied(component: Component) -> tuple[Path, ...]:
    """Remove the folders where setuptools gathers what goes into the wheel; objects stay.

    Not `lib` itself: CMake projects keep libraries there, and setuptools only pure Python.
    """
    if component.recipe.builder != "python":
        return ()
    folder = Path(component.tree, component.recipe.python.build_folder)
    found = [*folder.glob("lib.*"), *folder.glob("bdist.*")]
    if not (folder / "CMakeCache.txt").exists():
        found += folder.glob("lib")
    for path in found:
        with suppress(OSError):  # the step itself will say what is wrong with that folder
            shutil.rmtree(path)
    return tuple(found)


_TELL_EVERY_S: Final = 1.0


@dataclass(kw_only=True)
class _Watched:
    """A running step."""

    begun: float
    since: float
    """Seconds since 1970 of the step's first attempt: objects of cut-off ones count, too."""
    told: float = 0.0
    reader: ProgressReader = field(default_factory=ProgressReader)
    remaining: RemainingTime = field(default_factory=RemainingTime)
    counts: CacheCounts | None = None
    cache_log: Path | None = None


@dataclass(kw_only=True)
class CompileWatch:
    """The StepWatch of a build."""

    plan: Plan
    folder: BuildFolder
    choice: JobChoice
    history: History
    cache_for: Callable[[Step], tuple[CacheDecision, tuple[str, ...]]]
    """The compiler cache of a step, probed when it is first asked for, and what enters its root."""
    passed: Mapping[str, str]
    """Variables of the user that every step gets."""
    times: dict[str, StepTimes] = field(default_factory=dict)
    """What each step of this run cost."""
    created_at: float = field(default_factory=time.time)
    """Seconds since 1970: a step that was first tried before then was cut off."""
    _running: dict[str, _Watched] = field(default_factory=dict)

    def begin(self, step: Step, since: float) -> Mapping[str, str]:
        """The whole environment of the step's commands."""
        watched = _Watched(begun=time.monotonic(), since=since)
        self._running[step.name] = watched
        variables = {**self.passed, **dict(step.variables)}
        known = self.history.read(self._remembered(step))
        watched.remaining = RemainingTime(earlier=known.steps.get(step.name))
        if since < self.created_at:
            variables |= COPY_AGAIN
        if not step.compiles:
            return variables
        component = self.plan.component(step.component)
        recipe = component.recipe
        if since < self.created_at:
            remove_half_copied(component)
        log = self.folder.meter_log(step.component)
        table = self.folder.meter / f"{step.component}.table"
        if log.exists():
            # A half-written object would be taken for whole by make, which looks at times only.
            remove_unfinished(read_meter_log(log), below=self.folder.folder)
        write_table(table, memory_table(recipe, known))
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
        if decision.choice is not None:
            watched.counts = read_counts(decision.choice, variables=variables, before=before)
            watched.cache_log = self.folder.meter / f"{step.component}.cache"
            watched.cache_log.unlink(missing_ok=True)
            variables.setdefault("CCACHE_STATSLOG", str(watched.cache_log))
        return variables

    def heard(self, step: Step, output: bytes) -> BuildEvent | None:
        """Progress by the build's own counts, at most once a second."""
        watched = self._running[step.name]
        watched.reader.feed(output)
        now = time.monotonic()
        progress = watched.reader.progress
        if progress is None or now - watched.told < _TELL_EVERY_S:
            return None
        watched.told = now
        elapsed_s = now - watched.begun
        watched.remaining.observe(progress, elapsed_s)
        return BuildEvent(
            kind="progress",
            step=step.name,
            done=progress.done,
            total=progress.total or 0,
            elapsed_s=elapsed_s,
            remaining_s=watched.remaining.remaining_s(elapsed_s),
        )

    def end(self, step: Step, wall_s: float, *, whole: bool) -> None:
        """Keep what was learned."""
        watched = self._running.pop(step.name)
        if not step.compiles or step.name.endswith("/configure"):
            # What configuring compiles are probes, thrown away at once.
            self.times[step.name] = StepTimes(step=step.name, wall_s=wall_s)
            return
        log = read_meter_log(self.folder.meter_log(step.component))
        mine = [one for one in log.compiles if one.start_s >= watched.since]
        self.history.learn(self._remembered(step), log)
        cpu_s = sum(one.cpu_s for one in mine)
        if whole and mine:
            run = StepRun(
                wall_s=wall_s, jobs=self.choice.jobs, cpu_s=cpu_s, curve=watched.remaining.curve
            )
            self.history.learn_step(self._remembered(step), step.name, run)
        self.times[step.name] = StepTimes(
            step=step.name,
            wall_s=wall_s,
            cpu_s=cpu_s,
            compiles=len(mine),
            peak_memory_mib=max((one.peak_mib for one in mine), default=None),
            cache_hit_rate=self._hit_rate(step, watched),
        )

    def _remembered(self, step: Step) -> str:
        parts = [part for part in self.plan.components if part.name == step.component]
        return history_name(self.plan, parts[0]) if parts else step.component

    def _hit_rate(self, step: Step, watched: _Watched) -> float | None:
        logged = logged_counts(watched.cache_log) if watched.cache_log else None
        if logged is not None:
            return logged.rate
        if watched.counts is None:
            return None
        decision, before = self.cache_for(step)
        if decision.choice is None:
            return None
        variables = {**self.passed, **dict(step.variables), **decision.choice.variables}
        after = read_counts(decision.choice, variables=variables, before=before)
        counted = cache_statistics(watched.counts, after)
        return counted.rate if counted else None


def _cmake_compiles(recipe: Recipe) -> bool:
    return recipe.builder == "cmake" or (
        recipe.builder == "python" and recipe.python.compiles_with == "cmake"
    )
