"""Update, rebuild, clean or test an existing build, given its name.

The request is read from `request.json` in the build folder, so that the name of a build suffices.
An update prepares a new working copy beside the old one; then only the files that
differ are copied (`sync_tree`), so that unchanged files keep their time stamps and their objects
are reused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from torchyard.builds import BUILD_PREFIX
from torchyard.builds.build_folders import BuildFolder, BuildsDirectory, exclusive_run_lock
from torchyard.builds.environments.model import inherited_variables
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
from torchyard.builds.planner import copy_actions, fetch_place
from torchyard.builds.recipe_file import BuildRequest
from torchyard.builds.record import RecipeIdentity, TestFileReport
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
from torchyard.builds.sources import fetch_actions, update_actions, used_source_kind
from torchyard.builds.sources.git import commit_of, git_output
from torchyard.builds.verify.project_tests import run_test_file
from torchyard.core.records import decode, nearest_hint
from torchyard.errors import NotAllowed, NothingToDo, ResultsDamaged, UsageError
from torchyard.files.safe_writing import write_error

CleanLevel = Literal["objects", "tree"]


def requested_cache(name: str, home: BuildsDirectory) -> str:
    """Return the compiler cache that was requested for the build."""
    content = _read_request_file(name, home)
    return str(content.get("cache", "auto"))


def used_lock_path(name: str, home: BuildsDirectory) -> str:
    """Return the path of the lock file that the build was made with; empty if there is none."""
    path = home.build(name).used_lock_file
    return str(path) if path.exists() else ""


def read_request(name: str, home: BuildsDirectory) -> BuildRequest:
    """Return the request that the build was made with."""
    path = home.build(name).request_file
    content = _read_request_file(name, home)
    try:
        identity = decode(RecipeIdentity, content, where=str(path), strict=False)
    except UsageError as error:
        raise ResultsDamaged(f"{path} cannot be read", why=error.what) from error
    settings: dict[str, dict[str, Any]] = {
        component: dict(values) for component, values in identity.settings.items()
    }
    return BuildRequest(
        recipe=identity.name, variant=identity.variant, version=identity.version, settings=settings
    )


def _read_request_file(name: str, home: BuildsDirectory) -> dict[str, Any]:
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
        raise ResultsDamaged(f"{path} cannot be read", why="it is not a JSON object")
    return content


def dependent_builds(name: str, home: BuildsDirectory) -> tuple[str, ...]:
    """Return the names of the builds that use this one as their base, finished or not."""
    folder = home.build(name).folder
    names = []
    for path in sorted(home.builds.glob("*/request.json")):
        with suppress(UsageError, ResultsDamaged):
            settings = read_request(path.parent.name, home).settings
            bases = [str(values.get("environment.base", "")) for values in settings.values()]
            if any(
                base == f"{BUILD_PREFIX}{name}" or Path(base).is_relative_to(folder)
                for base in bases
            ):
                names.append(path.parent.name)
    return tuple(names)


def select_components(plan: Plan, names: Iterable[str]) -> tuple[Component, ...]:
    """Return the named components; all if no name is given."""
    selected = tuple(names)
    available = [part.name for part in plan.components]
    for name in selected:
        if name not in available:
            raise UsageError(
                f"{plan.name} has no component {name!r}",
                hint=nearest_hint(name, available, what="component"),
            )
    return tuple(part for part in plan.components if not selected or part.name in selected)


def component_build_steps(plan: Plan, component: str, *, from_configure: bool) -> tuple[str, ...]:
    """Return the names of a component's steps from `configure` or `build` on."""
    own = [step for step in plan.steps if step.component == component]
    for index, step in enumerate(own):
        what = step.name.partition("/")[2]
        if what == "build" or (from_configure and what in ("requirements", "configure")):
            return tuple(item.name for item in own[index:])
    return tuple(step.name for step in own if step.name.endswith("/verify"))


def clean(
    plan: Plan, folder: BuildFolder, components: Iterable[Component], level: CleanLevel
) -> tuple[Path, ...]:
    """Remove object files, or working copies with all generated files.

    The next build recreates a removed working copy from its source, with patches and preparation,
    so that no generated file survives.
    """
    paths = [path for part in components for path in _paths_to_remove(plan, folder, part, level)]
    removed = [path for path in paths if path.exists()]
    for path in removed:
        _remove(path)
    return tuple(removed)


def remove_build(name: str, home: BuildsDirectory) -> tuple[Path, ...]:
    """Remove the folder of a build, unless other builds use it as their base.

    Makes no plan: the base that a plan requires may no longer exist.
    """
    others = dependent_builds(name, home)
    if others:
        raise UsageError(
            f"{name} is the base of {', '.join(others)}",
            why="they do not work without it",
            hint=f"first run: torchyard build clean {others[0]} --level all",
        )
    folder = home.build(name).folder
    _remove(folder)
    return (folder,)


def _paths_to_remove(
    plan: Plan, folder: BuildFolder, part: Component, level: CleanLevel
) -> list[Path]:
    """Return the paths to remove, step states first: an interrupted removal must not look done."""
    tree = Path(part.tree)
    # make and SCons put object files among the sources.
    remove_tree = level == "tree" or part.recipe.builder in ("make", "scons")
    object_folder = part.recipe.python.build_folder if part.recipe.builder == "python" else "build"
    states = [
        folder.state(step.name)
        for step in plan.steps
        if step.component == part.name
        and not step.name.endswith("/fetch")
        and (remove_tree or not step.name.endswith("/tree"))
    ]
    return [
        *states,
        *(folder.report(part.name), folder.meter_log(part.name)),
        *(tree if remove_tree else tree / object_folder, folder.dist(part.name)),
    ]


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            with suppress(FileNotFoundError):
                path.unlink()
    except OSError as error:
        raise write_error(path, error, kept="the rest") from error


_SYNC: Final = str(Path(__file__).resolve().with_name("sync_tree.py"))
_IS_LOCAL_COMMIT: Final = re.compile(r"commit|cherry-pick|am:|rebase|merge|revert").match
"""Matches reflog entries of commits made locally, not fetched."""


def make_update_plan(
    plan: Plan, components: Iterable[Component], home: BuildsDirectory
) -> Plan | None:
    """Return a plan that updates sources and working copies; None if all sources are pinned."""
    steps: list[Step] = []
    for part in components:
        steps += _update_steps(plan, part, home)
    return replace(plan, steps=tuple(steps), notes=()) if steps else None


def local_changes(part: Component) -> str:
    """Describe local commits or edits of a working copy that an update would discard; empty if none.

    Edits cannot be distinguished from the changes of patches and prepare commands; where a recipe
    has those, only commits are detected.
    """
    tree, source = Path(part.tree), Path(part.source)
    if used_source_kind(part.recipe.source, f"{part.name}: source") == "folder":
        changed = "" if part.recipe.patches or part.recipe.prepare else first_edit(source, tree)
        return f"{tree} has edits: {changed}" if changed else ""
    if not (tree / ".git").exists() or not (source / ".git").exists():
        return ""
    if commit_of(tree) != commit_of(source):
        # The source may have been updated by another build: only commits made here are local.
        reflog = (git_output(tree, "reflog", "--format=%gs") or "").splitlines()
        local_commits = [line for line in reflog if _IS_LOCAL_COMMIT(line)]
        if local_commits:
            return f"{tree} has commits that are not in its source: {local_commits[0]}"
    if part.recipe.patches or part.recipe.prepare:
        return ""
    edited = git_output(tree, "status", "--porcelain", "--untracked-files=no")
    return f"{tree} has edits: {edited.splitlines()[0].strip()}" if edited else ""


def mark_updated(plan: Plan, updates: Plan) -> None:
    """Mark the fetch and tree steps of the updated components as up to date."""
    folder = BuildFolder(folder=Path(plan.folder))
    step_fingerprints = fingerprints(plan)
    updated = {step.component for step in updates.steps}
    for name in updated:
        folder.edited(name).unlink(missing_ok=True)
    for step in plan.steps:
        what = step.name.partition("/")[2]
        if step.component in updated and what in ("fetch", "tree"):
            state = folder.state(step.name)
            if what == "tree" and not Path(plan.component(step.component).tree).exists():
                # Removed to save space: it will be recreated from the new source.
                state.unlink(missing_ok=True)
            else:
                touch(step, state, step_fingerprints[step.name])


def _update_steps(plan: Plan, part: Component, home: BuildsDirectory) -> tuple[Step, ...]:
    source, place = Path(part.source), fetch_place(part, home)
    fetch_newest = update_actions(part.recipe.source, place)
    if not fetch_newest.actions:
        return ()
    if not source.exists():  # removed to save space
        fetch_newest = fetch_actions(part.recipe.source, place)
    fetch = next(step for step in plan.steps if step.name == f"{part.name}/fetch")
    tree = next(step for step in plan.steps if step.name == f"{part.name}/tree")
    folder = BuildFolder(folder=Path(plan.folder))
    listed, new = folder.listed(part.name), f"{part.tree}.part"
    has_tree = Path(part.tree).exists()
    listing: tuple[Action, ...] = ()
    if has_tree and source.exists() and not listed.exists():
        # Copied by an earlier version of Torchyard, which wrote no list of the source's files.
        listing = (_sync("list", part.source, str(listed)),)
    steps = [
        Step(
            name=f"{part.name}/update",
            component=part.name,
            title="update the source",
            actions=(*listing, *fetch_newest.actions),
            variables=fetch.variables,
            network=True,
        )
    ]
    if has_tree:
        first = component_build_steps(plan, part.name, from_configure=True)[0]
        copy, _ = copy_actions(part, new)
        steps.append(
            Step(
                name=f"{part.name}/update-tree",
                component=part.name,
                title="update the working copy",
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


def _sync(*arguments: str) -> Command:
    return Command(argv=(sys.executable, "-I", "-S", _SYNC, *arguments), inside_root=False)


def update_build(
    name: str,
    components: tuple[str, ...],
    *,
    jobs: str,
    discard: bool = False,
    listener: BuildListener,
) -> BuildOutcome:
    """Update the sources, then rebuild what changed; refuse to discard local work."""
    # Without the lock file that it may have been built with: an update leaves the locked sources.
    choices = replace(_earlier_choices(name, jobs=jobs), lock_file="")
    planned = _plan_existing(name, choices)
    parts = select_components(planned.plan, components)
    for part in parts:
        work = "" if discard else local_changes(part)
        if work:
            raise NotAllowed(
                f"updating {part.name} would discard local work",
                why=work,
                hint="push or copy it first, then use --discard",
            )
    updates = make_update_plan(planned.plan, parts, planned.home)
    if updates is None:
        listener(BuildEvent(kind="note", text="nothing to update: all sources are pinned"))
    else:
        session = BuildSession(
            planned=replace(planned, plan=updates, lock=None),
            choices=BuildChoices(selection=Selection(force=True)),
            listener=listener,
        )
        for error in session.run().failed.values():
            raise error
        mark_updated(planned.plan, updates)
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
    """Rebuild the edited working copy of a component, install and check it."""
    choices = _earlier_choices(name, jobs=jobs)
    planned = _plan_existing(name, choices)
    part = select_components(planned.plan, (component,) if component else ())[-1]
    # A component from the build cache has no objects.
    from_configure |= planned.home.build(name).restored(part.name).exists()
    steps = component_build_steps(planned.plan, part.name, from_configure=from_configure)
    selection = Selection(start_from=steps[:1]) if dependents else Selection(only=steps)
    mark = planned.home.build(name).edited(part.name)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return run_build(planned, replace(choices, selection=selection, doctor=False), listener)


def clean_build(name: str, components: tuple[str, ...], level: str) -> tuple[Path, ...]:
    """Remove `objects`, the working `tree`, or `all` of a build."""
    home = BuildsDirectory.default()
    folder = home.build(name)
    if level == "all":
        if components:
            raise UsageError(
                "--level all removes the whole build",
                hint="omit --component, or use --level tree",
            )
        read_request(name, home)  # raises for an unknown name, before its lock file is created
        with exclusive_run_lock(folder.lock_file):
            return remove_build(name, home)
    planned = _plan_existing(name, _earlier_choices(name))
    chosen: CleanLevel = next(item for item in get_args(CleanLevel) if item == level)
    with exclusive_run_lock(folder.lock_file):
        return clean(planned.plan, folder, select_components(planned.plan, components), chosen)


def _earlier_choices(name: str, *, jobs: str = "auto") -> BuildChoices:
    """Return the choices the build was made with."""
    home = BuildsDirectory.default()
    return BuildChoices(
        name=name,
        jobs=jobs,
        cache=requested_cache(name, home),
        lock_file=used_lock_path(name, home),
    )


def _plan_existing(name: str, choices: BuildChoices) -> PlannedBuild:
    return plan_build(read_request(name, BuildsDirectory.default()), choices)


def run_build_tests(
    name: str,
    files: tuple[str, ...],
    *,
    component: str,
    limit_s: float,
    listener: BuildListener = ignore_build_events,
) -> tuple[TestFileReport, ...]:
    """Run the given test files, or those of the recipe, and report every test.

    Relative paths start at the component's working copy.
    """
    planned = _plan_existing(name, _earlier_choices(name))
    part = select_components(planned.plan, (component,) if component else ())[-1]
    known_failures = {test.path: test.known_failures for test in part.recipe.verify.tests}
    paths = files or tuple(known_failures)
    if not paths:
        raise NothingToDo(
            f"the recipe {part.recipe.name} lists no test files",
            hint="give one: torchyard build test BUILD test/test_x.py",
        )
    step = next(step for step in planned.plan.steps if step.name == f"{part.name}/verify")
    folder = planned.home.build(name)
    performer = StepPerformer(
        step=step,
        folder=folder,
        variables={**inherited_variables(os.environ), **dict(step.variables)},
        verify=lambda *_: None,
        on_output=lambda _: None,
    )
    accounts = []
    for file in paths:
        listener(BuildEvent(kind="note", text=f"running {file}"))
        accounts.append(
            run_test_file(
                str(Path(part.tree, file)),
                known_failures.get(file, ()),
                python=part.python,
                run=performer.run_in_target,
                results=folder.folder / "tests",
                import_name=part.recipe.verify.import_name,
                limit_s=limit_s,
            )
        )
    return tuple(accounts)
