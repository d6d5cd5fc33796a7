"""Looks over the shoulder of steps that compile: hands them the meter, follows their counts.

Joins the meter, its history and the progress reader; the runner knows only the StepWatch side.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from torchyard.build.compiler_cache import CacheChoice
from torchyard.build.layout import BuildFolder
from torchyard.build.meter import (
    meter_variables,
    read_meter_log,
    remove_unfinished,
    step_variables,
)
from torchyard.core.build_events import BuildEvent
from torchyard.core.build_plan import Plan, Step
from torchyard.core.recipe import Recipe

__all__ = ["CompileWatch"]

_COUNT: Final = re.compile(rb"\[\s*(\d+)/(\d+)\]")
_TELL_EVERY_S: Final = 1.0


@dataclass(kw_only=True)
class CompileWatch:
    """The StepWatch of a build."""

    plan: Plan
    folder: BuildFolder
    jobs: int
    memory_mib: int
    cache: CacheChoice | None
    passed: Mapping[str, str]
    """Variables of the user that every step gets."""
    _begun: dict[str, float] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)

    def begin(self, step: Step) -> Mapping[str, str]:
        """The whole environment of the step's commands."""
        self._begun[step.name] = time.monotonic()
        variables = {**self.passed, **dict(step.variables)}
        if not step.compiles:
            return variables
        recipe = self.plan.component(step.component).recipe
        log = self.folder.meter_log(step.component)
        if log.exists():
            remove_unfinished(read_meter_log(log))
        variables |= meter_variables(
            self.folder.meter,
            jobs=self.jobs,
            memory_mib=self.memory_mib,
            masquerade=not _cmake_compiles(recipe),
            cache=self.cache,
            default_mib=recipe.job_memory_mib,
            path=variables.get("PATH", ""),
        )
        variables |= step_variables(log=log, table=self.folder.meter / f"{step.component}.table")
        variables |= {"MAX_JOBS": str(self.jobs), "CMAKE_BUILD_PARALLEL_LEVEL": str(self.jobs)}
        return variables

    def heard(self, step: Step, output: bytes) -> BuildEvent | None:
        """Progress by ninja's own counts, at most once a second."""
        counts = _COUNT.findall(output)
        now = time.monotonic()
        if not counts or now - self._told.get(step.name, 0.0) < _TELL_EVERY_S:
            return None
        self._told[step.name] = now
        done, total = (int(text) for text in counts[-1])
        return BuildEvent(
            kind="progress",
            step=step.name,
            done=done,
            total=total,
            elapsed_s=now - self._begun[step.name],
        )

    def end(self, step: Step, wall_s: float, *, whole: bool) -> None:
        """Keep what was learned."""


def _cmake_compiles(recipe: Recipe) -> bool:
    return recipe.builder == "cmake" or (
        recipe.builder == "python" and recipe.python.compiles_with == "cmake"
    )
