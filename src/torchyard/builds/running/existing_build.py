"""Update, rebuild, clean or test an existing build, given its name.

The request comes from `request.json` in the build folder, so that a build is named and not
described again. An update prepares a new working copy beside the old one; then only the files that
differ are copied (`sync_tree`), so that unchanged files keep their time stamps and their objects
are reused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from torchyard.builds import BUILD_PREFIX
from torchyard.builds.build_folders import BuildFolder, YardHome, only_run
from torchyard.builds.environments import passed_through
from torchyard.builds.plan import (
    Action,
    BuildEvent,
    BuildListener,
    Command,
    Component,
    Plan,
    Step,
    fingerprints,
    ignore_build_events,
)
from torchyard.builds.planner import copy_actions
from torchyard.builds.recipe_file import BuildRequest
from torchyard.builds.record import RecipeIdentity, TestAccount
from torchyard.builds.running.build import (
    BuildChoices,
    BuildOutcome,
    BuildSession,
    PlannedBuild,
    plan_build,
    run_build,
)
from torchyard.builds.running.runner import Selection, touch
from torchyard.builds.running.steps import StepPerformer
from torchyard.builds.running.sync_tree import first_edit
from torchyard.builds.sources import fetch_actions, update_actions, used_kind
from torchyard.builds.verify import run_test_file
from torchyard.core.records import decode, nearest_hint
from torchyard.errors import NotAllowed, NothingToDo, ResultsDamaged, UsageError
from torchyard.files.safe_writing import write_failed

CleanLevel = Literal["objects", "tree"]


def read_cache(name: str, home: YardHome) -> str:
    """The compiler cache that the build of that name was asked for with."""
    content = _read_request_file(name, home)
    return str(content.get("cache", "auto"))


def used_lock(name: str, home: YardHome) -> str:
    """The lock file that the build of that name was made with; empty where there is none."""
    path = home.build(name).used_lock_file
    return str(path) if path.exists() else ""


def read_request(name: str, home: YardHome) -> BuildRequest:
    """What the build of that name was asked for with."""
    path = home.build(name).request_file
    content = _read_request_file(name, home)
    try:
        said = decode(RecipeIdentity, content, where=str(path), strict=False)
    except UsageError as error:
        raise ResultsDamaged(f"{path} cannot be read", why=error.what) from error
    settings: dict[str, dict[str, Any]] = {
        component: dict(values) for component, values in said.settings.items()
    }
    return BuildRequest(
        recipe=said.name, variant=said.variant, version=said.version, settings=settings
    )


def _read_request_file(name: str, home: YardHome) -> dict[str, Any]:
    path = home.build(name).request_file
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        names = [item.parent.name for item in home.builds.glob("*/request.json")]
        raise UsageError(
            f"there is no build {name!r}", hint=nearest_hint(name, names, what="build")
        ) from error
    except (OSError, ValueError) as error:
        raise ResultsDamaged(f"{path} cannot be read", why=str(error)) from error
    if not isinstance(content, dict):
        raise ResultsDamaged(f"{path} cannot be read", why="it holds no table")
    return content


def built_on(name: str, home: YardHome) -> tuple[str, ...]:
    """Names of the builds that have this one for their base, finished or not."""
    folder = home.build(name).folder
    found = []
    for path in sorted(home.builds.glob("*/request.json")):
        with suppress(UsageError, ResultsDamaged):
            settings = read_request(path.parent.name, home).settings
            bases = [str(values.get("environment.base", "")) for values in settings.values()]
            if any(
                base == f"{BUILD_PREFIX}{name}" or Path(base).is_relative_to(folder)
                for base in bases
            ):
                found.append(path.parent.name)
    return tuple(found)


def chosen_components(plan: Plan, names: Iterable[str]) -> tuple[Component, ...]:
    """The components of those names; all of them without any."""
    wanted = tuple(names)
    known = [part.name for part in plan.components]
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"{plan.name} has no component {name!r}",
                hint=nearest_hint(name, known, what="component"),
            )
    return tuple(part for part in plan.components if not wanted or part.name in wanted)


def build_steps(plan: Plan, component: str, *, from_configure: bool) -> tuple[str, ...]:
    """Names of a component's steps from configuring or compiling on."""
    own = [step for step in plan.steps if step.component == component]
    for index, step in enumerate(own):
        what = step.name.partition("/")[2]
        if what == "build" or (from_configure and what in ("requirements", "configure")):
            return tuple(item.name for item in own[index:])
    return tuple(step.name for step in own if step.name.endswith("/verify"))


def clean(
    plan: Plan, folder: BuildFolder, components: Iterable[Component], level: CleanLevel
) -> tuple[Path, ...]:
    """Remove objects, or working copies with all that was generated into them.

    A working copy that is removed is made anew from its source at the next build, with patches and
    preparation, so nothing that a code generator wrote into it survives.
    """
    gone = [path for part in components for path in _made(plan, folder, part, level)]
    removed = [path for path in gone if path.exists()]
    for path in removed:
        _remove(path)
    return tuple(removed)


def remove_build(name: str, home: YardHome) -> tuple[Path, ...]:
    """Remove everything of a build; not while another one is built on it.

    Needs no plan: the base that a plan would ask for may be gone by now.
    """
    others = built_on(name, home)
    if others:
        raise UsageError(
            f"{name} is the base of {', '.join(others)}",
            why="without it they do not start",
            hint=f"torchyard build clean {others[0]} --level all, first",
        )
    folder = home.build(name).folder
    _remove(folder)
    return (folder,)


def _made(plan: Plan, folder: BuildFolder, part: Component, level: CleanLevel) -> list[Path]:
    """What to remove of a component, states first: what is cut off then is not taken for done."""
    tree = Path(part.tree)
    # Objects of make and SCons lie among the sources.
    whole = level == "tree" or part.recipe.builder in ("make", "scons")
    build = part.recipe.python.build_folder if part.recipe.builder == "python" else "build"
    states = [
        folder.state(step.name)
        for step in plan.steps
        if step.component == part.name
        and not step.name.endswith("/fetch")
        and (whole or not step.name.endswith("/tree"))
    ]
    return [
        *states,
        *(folder.report(part.name), folder.meter_log(part.name)),
        *(tree if whole else tree / build, folder.dist(part.name)),
    ]


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            with suppress(FileNotFoundError):
                path.unlink()
    except OSError as error:
        raise write_failed(path, error, kept="what could not be removed") from error


_SYNC: Final = str(Path(__file__).resolve().with_name("sync_tree.py"))
_OWN: Final = re.compile(r"commit|cherry-pick|am:|rebase|merge|revert").match
"""Beginnings of what git writes down for itself about commits that are made, not fetched."""


def update_plan(plan: Plan, components: Iterable[Component], home: YardHome) -> Plan | None:
    """A plan that brings sources and working copies to the newest; None when nothing can move."""
    steps: list[Step] = []
    for part in components:
        steps += _steps(plan, part, home)
    return replace(plan, steps=tuple(steps), notes=()) if steps else None


def local_work(part: Component) -> str:
    """What an update would throw away of a working copy: own commits, or edits; empty for none.

    Patches and preparation change files, too; where a recipe has such, edits cannot be told from
    them, and only commits are seen.
    """
    tree, source = Path(part.tree), Path(part.source)
    if used_kind(part.recipe.source, f"{part.name}: source") == "folder":
        changed = "" if part.recipe.patches or part.recipe.prepare else first_edit(source, tree)
        return f"{tree} has edits: {changed}" if changed else ""
    if not (tree / ".git").exists() or not (source / ".git").exists():
        return ""
    if _git(tree, "rev-parse", "HEAD") != _git(source, "rev-parse", "HEAD"):
        # Another build's update may have moved the source on: only commits made here are own work.
        made = [line for line in _git(tree, "reflog", "--format=%gs").splitlines() if _OWN(line)]
        if made:
            return f"{tree} has commits that its source has not: {made[0]}"
    if part.recipe.patches or part.recipe.prepare:
        return ""
    edited = _git(tree, "status", "--porcelain", "--untracked-files=no")
    return f"{tree} has edits: {edited.splitlines()[0].strip()}" if edited else ""


def _git(folder: Path, *words: str) -> str:
    # The copy belongs to whoever built it, which need not be who updates it.
    trusting = ("-c", f"safe.directory={folder}")
    ended = subprocess.run(
        ["git", *trusting, "-C", str(folder), *words],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return ended.stdout.strip()


def settle(plan: Plan, updates: Plan) -> None:
    """After the updates: sources and working copies are what the plan wants of them."""
    folder = BuildFolder(folder=Path(plan.folder))
    prints = fingerprints(plan)
    moved = {step.component for step in updates.steps}
    for name in moved:
        folder.edited(name).unlink(missing_ok=True)
    for step in plan.steps:
        what = step.name.partition("/")[2]
        if step.component in moved and what in ("fetch", "tree"):
            state = folder.state(step.name)
            if what == "tree" and not Path(plan.component(step.component).tree).exists():
                # Removed to save space: it is made from the new source.
                state.unlink(missing_ok=True)
            else:
                touch(step, state, prints[step.name])


def _steps(plan: Plan, part: Component, home: YardHome) -> tuple[Step, ...]:
    source, where = Path(part.source), f"{part.name}: source"
    fresh = update_actions(
        part.recipe.source, destination=source, downloads=home.downloads, where=where
    )
    if not fresh.actions:
        return ()
    if not source.exists():  # removed to save space
        fresh = fetch_actions(
            part.recipe.source, destination=source, downloads=home.downloads, where=where
        )
    fetch = next(step for step in plan.steps if step.name == f"{part.name}/fetch")
    tree = next(step for step in plan.steps if step.name == f"{part.name}/tree")
    folder = BuildFolder(folder=Path(plan.folder))
    listed, new = folder.listed(part.name), f"{part.tree}.part"
    has_tree = Path(part.tree).exists()
    known: tuple[Action, ...] = ()
    if has_tree and source.exists() and not listed.exists():
        # Copied by an earlier Torchyard, which wrote no list of the source's files.
        known = (_sync("list", part.source, str(listed)),)
    steps = [
        Step(
            name=f"{part.name}/update",
            component=part.name,
            title="bring the source to the newest",
            actions=(*known, *fresh.actions),
            variables=fetch.variables,
            network=True,
        )
    ]
    if has_tree:
        first = build_steps(plan, part.name, from_configure=True)[0]
        copy, _ = copy_actions(part, new)
        steps.append(
            Step(
                name=f"{part.name}/update-tree",
                component=part.name,
                title="bring the working copy to the newest",
                actions=(
                    Command(argv=("rm", "-rf", new)),
                    *copy,
                    _sync("sync", new, part.tree, str(listed), str(folder.state(first))),
                ),
                needs=(steps[0].name,),
                variables=tree.variables,
                root=tree.root,
            )
        )
    return tuple(steps)


def _sync(*words: str) -> Command:
    return Command(argv=(sys.executable, "-I", "-S", _SYNC, *words), inside_root=False)


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
