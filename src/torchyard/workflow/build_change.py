"""Updating, rebuilding and cleaning a build by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

from torchyard.build.changing import (
    CleanLevel,
    build_steps,
    chosen_components,
    clean,
    read_cache,
    read_request,
    remove_build,
    used_lock,
)
from torchyard.build.folder_lock import only_run
from torchyard.build.layout import YardHome
from torchyard.build.selection import Selection
from torchyard.build.session import BuildSession
from torchyard.build.updating import local_work, settle, update_plan
from torchyard.core.build_events import BuildEvent, BuildListener
from torchyard.errors import NotAllowed, UsageError
from torchyard.workflow.build_run import (
    BuildChoices,
    BuildOutcome,
    PlannedBuild,
    plan_build,
    run_build,
)

__all__ = ["clean_build", "rebuild_component", "update_build"]


def update_build(
    name: str,
    components: tuple[str, ...],
    *,
    jobs: str,
    discard: bool = False,
    listener: BuildListener,
) -> BuildOutcome:
    """Bring sources to the newest, then build what changed; own work is not thrown away."""
    # Without the lock that it may have been made with: to update is to leave that behind.
    choices = replace(_choices(name, jobs=jobs), lock_file="")
    planned = _planned(name, choices)
    parts = chosen_components(planned.plan, components)
    for part in parts:
        work = "" if discard else local_work(part)
        if work:
            raise NotAllowed(
                f"updating {part.name} would throw work of yours away",
                why=work,
                hint="push or copy it somewhere first, then say --discard",
            )
    updates = update_plan(planned.plan, parts, planned.home)
    if updates is None:
        listener(BuildEvent(kind="note", text="no source of this build can move: all are pinned"))
    else:
        session = BuildSession(
            plan=updates,
            home=planned.home,
            choice=planned.jobs,
            listener=listener,
            selection=Selection(force=True),
        )
        result = session.run()
        for error in result.failed.values():
            raise error
        settle(planned.plan, updates)
    return run_build(planned, choices, listener)


def rebuild_component(
    name: str,
    component: str,
    *,
    dependents: bool,
    from_configure: bool,
    jobs: str,
    listener: BuildListener,
) -> BuildOutcome:
    """Compile what was edited in a working copy, install and check it."""
    planned = _planned(name, _choices(name, jobs=jobs))
    part = chosen_components(planned.plan, (component,) if component else ())[-1]
    steps = build_steps(planned.plan, part.name, from_configure=from_configure)
    selection = Selection(start_from=steps[:1]) if dependents else Selection(only=steps)
    choices = replace(_choices(name, jobs=jobs), selection=selection, doctor=False)
    mark = planned.home.build(name).edited(part.name)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return run_build(planned, choices, listener)


def clean_build(name: str, components: tuple[str, ...], level: str) -> tuple[Path, ...]:
    """Remove what the build made: `objects`, `tree`, or `all` of it."""
    home = YardHome.default()
    folder = home.build(name)
    if level == "all":
        if components:
            raise UsageError(
                "--level all removes the whole build",
                hint="leave --component out, or say --level tree",
            )
        read_request(name, home)  # a name that is none must not become a folder by being locked
        with only_run(folder.lock_file):
            return remove_build(name, home)
    planned = _planned(name, _choices(name, jobs="auto"))
    chosen: CleanLevel = next(item for item in get_args(CleanLevel) if item == level)
    with only_run(folder.lock_file):
        return clean(planned.plan, folder, chosen_components(planned.plan, components), chosen)


def _choices(name: str, *, jobs: str) -> BuildChoices:
    """How the build was built before."""
    home = YardHome.default()
    return BuildChoices(
        name=name, jobs=jobs, cache=read_cache(name, home), lock_file=used_lock(name, home)
    )


def _planned(name: str, choices: BuildChoices) -> PlannedBuild:
    return plan_build(read_request(name, YardHome.default()), choices)
