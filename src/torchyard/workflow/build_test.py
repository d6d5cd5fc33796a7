"""Running a test file of a built project in the finished target."""

from __future__ import annotations

import os
from pathlib import Path

from torchyard.build.changing import chosen_components, read_request, used_lock
from torchyard.build.environments import passed_through
from torchyard.build.layout import YardHome
from torchyard.build.perform import StepPerformer
from torchyard.build.verify import run_test_file
from torchyard.core.build_events import BuildEvent, BuildListener, ignore_build_events
from torchyard.core.build_record import TestAccount
from torchyard.errors import NothingToDo
from torchyard.workflow.build_run import BuildChoices, plan_build

__all__ = ["run_build_tests"]


def run_build_tests(
    name: str,
    files: tuple[str, ...],
    *,
    component: str,
    limit_s: float,
    listener: BuildListener = ignore_build_events,
) -> tuple[TestAccount, ...]:
    """Run the named files, or those the recipe names, and account for every test.

    A relative path starts at the component's working copy.
    """
    home = YardHome.default()
    choices = BuildChoices(name=name, lock_file=used_lock(name, home))
    planned = plan_build(read_request(name, home), choices)
    part = chosen_components(planned.plan, (component,) if component else ())[-1]
    known = {test.path: test.known_failures for test in part.recipe.verify.tests}
    wanted = files or tuple(known)
    if not wanted:
        raise NothingToDo(
            f"the recipe {part.recipe.name} names no test file",
            hint="name one: torchyard build test BUILD test/test_x.py",
        )
    step = next(step for step in planned.plan.steps if step.name == f"{part.name}/verify")
    folder = planned.home.build(name)
    performer = StepPerformer(
        step=step,
        folder=folder,
        variables={**passed_through(os.environ), **dict(step.variables)},
        verify=lambda *_: None,
        heard=lambda _: None,
    )
    accounts = []
    for file in wanted:
        listener(BuildEvent(kind="note", text=f"running {file}"))
        accounts.append(
            run_test_file(
                str(Path(part.tree, file)),
                known.get(file, ()),
                python=part.python,
                run=performer.run_in_target,
                results=folder.folder / "tests",
                import_name=part.recipe.verify.import_name,
                limit_s=limit_s,
            )
        )
    return tuple(accounts)
