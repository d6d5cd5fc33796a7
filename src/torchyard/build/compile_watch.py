"""Looks over the shoulder of steps that compile: hands them the meter, follows their counts.

Joins the meter, its history, the compiler cache and the progress reader; the runner knows only the
StepWatch side. What it learns makes the next build's guesses better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torchyard.build.compile_progress import ProgressReader, RemainingTime
from torchyard.build.compiler_cache import (
    CacheCounts,
    CacheDecision,
    cache_statistics,
    logged_counts,
    read_counts,
)
from torchyard.build.half_made import COPY_AGAIN, remove_half_copied
from torchyard.build.job_plan import history_name
from torchyard.build.layout import BuildFolder
from torchyard.build.meter import (
    meter_variables,
    read_meter_log,
    remove_unfinished,
    step_variables,
    write_table,
)
from torchyard.build.meter.history import History, StepRun
from torchyard.build.meter.jobs import JobChoice, memory_table
from torchyard.core.build_events import BuildEvent
from torchyard.core.build_plan import Plan, Step
from torchyard.core.build_record import StepTimes
from torchyard.core.recipe import Recipe

__all__ = ["CompileWatch"]

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
