"""The beginning of a race: what can be tried for a workload, here and with this target."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torchyard.core.race import DEFAULT_NAME, Goal, Race
from torchyard.core.study import Study
from torchyard.errors import UsageError
from torchyard.measure.targets import inspect_target
from torchyard.tune.facts import place_of
from torchyard.tune.space import load_space, read_space

__all__ = ["plan_race", "with_budget"]


LONGEST_STEP: Final = 0.25
"""Of the time: a choice that takes longer to compile could not be raced, and the others would not be."""
SHORTEST_LIMIT_S: Final = 30.0


def plan_race(
    study: Study,
    *,
    space: str,
    budget_s: float,
    with_changes: bool,
    goal: Goal = "latency",
    step_limit_given: bool = False,
) -> Race:
    """A race for the first workload of the study, with its baseline as the default."""
    settings = study.settings
    if not step_limit_given:
        limit_s = min(settings.step_limit_s, _step_limit_s(budget_s))
        settings = replace(settings, step_limit_s=limit_s)
    workload, default = study.workloads[0], study.baseline
    load_space(space)  # a wrong file is told before a process is started
    place = place_of(workload, default, inspect_target(default.target), goal=goal)
    return Race(
        workload=workload,
        default=replace(default, name=DEFAULT_NAME),
        space=read_space(space, place, with_changes=with_changes),
        alpha=study.budget.alpha,
        budget_s=budget_s,
        goal=goal,
        settings=settings,
    )


def with_budget(race: Race, budget_s: float) -> Race:
    """The same race with more time, also for a step."""
    if budget_s < race.budget_s:
        raise UsageError(
            f"--budget: {budget_s:g} s are less than the {race.budget_s:g} s that the race has",
            why="what was measured in that time would be left out",
            hint="give it more, or begin another race",
        )
    limit_s = max(race.settings.step_limit_s, _step_limit_s(budget_s))
    settings = replace(race.settings, step_limit_s=limit_s)
    return replace(race, budget_s=budget_s, settings=settings)


def _step_limit_s(budget_s: float) -> float:
    return max(SHORTEST_LIMIT_S, LONGEST_STEP * budget_s)
