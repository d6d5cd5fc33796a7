"""Which steps of a plan must run: what is not done, what was asked for, and what follows from it.

Pure: gets what is fresh, gives names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from torchyard.core.build_plan import Plan, Step
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError

__all__ = ["Selection", "find_step", "steps_to_run"]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the user said about steps."""

    force: bool = False
    """Run every step again; with `start_from`, only those that it names and what follows."""
    start_from: tuple[str, ...] = ()
    """Run these steps and everything that depends on them."""
    only: tuple[str, ...] = ()
    """Run these steps and nothing else."""


def find_step(plan: Plan, name: str, *, where: str) -> Step:
    """A step by its name, or by the part behind the slash where that is unique."""
    found = [
        step for step in plan.steps if step.name == name or step.name.partition("/")[2] == name
    ]
    exact = [step for step in found if step.name == name]
    if len(exact or found) == 1:
        return (exact or found)[0]
    names = [step.name for step in plan.steps]
    if found:
        several = ", ".join(step.name for step in found)
        raise UsageError(f"{where}: {name!r} is the name of several steps", hint=f"say {several}")
    raise UsageError(
        f"{where}: there is no step {name!r}", hint=nearest_hint(name, names, what="step")
    )


def steps_to_run(
    plan: Plan, selection: Selection, *, fresh: Callable[[Step], bool]
) -> tuple[str, ...]:
    """Names of the steps to run, in the plan's order."""
    if selection.only:
        chosen = {find_step(plan, name, where="--only").name for name in selection.only}
        _check_needs(plan, chosen, fresh)
        return tuple(step.name for step in plan.steps if step.name in chosen)
    forced = {find_step(plan, name, where="--from").name for name in selection.start_from}
    # Beside --from, --force must not reach back: making the source tree anew would cost all objects.
    everything = selection.force and not forced
    running: set[str] = set()
    counting = {step.name for step in plan.steps if step.counts}
    for step in plan.steps:
        follows = any(need in running and need in counting for need in step.needs)
        if everything or step.name in forced or follows or not fresh(step):
            running.add(step.name)
    return _with_what_they_need(plan, running)


def _with_what_they_need(plan: Plan, running: set[str]) -> tuple[str, ...]:
    """A source that was removed is fetched again only where a step that runs needs it."""
    for step in reversed(plan.steps):
        if step.name not in running:
            continue
        for name in step.needs:
            need = next(item for item in plan.steps if item.name == name)
            if not need.kept and not all(Path(path).exists() for path in need.creates):
                running.add(name)
    return tuple(step.name for step in plan.steps if step.name in running)


def _check_needs(plan: Plan, chosen: Collection[str], fresh: Callable[[Step], bool]) -> None:
    steps = {step.name: step for step in plan.steps}
    for name in chosen:
        for need in steps[name].needs:
            if need not in chosen and not fresh(steps[need]):
                raise UsageError(
                    f"--only {name}: the step {need}, which comes before it, is not done",
                    hint=f"leave --only out, or add --only {need}",
                )
