"""Changing a build that is there: bring its sources to the tip, compile what was edited, clean.

Works on what `request.json` of the build's folder says, so that a build is named, not described
again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from torchyard.build.components import BuildRequest
from torchyard.build.layout import BuildFolder, YardHome
from torchyard.build.sources import update_actions
from torchyard.core.build_plan import Action, Command, Component, Plan, Step
from torchyard.core.build_record import RecipeIdentity
from torchyard.core.records import decode, nearest_hint
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.results.durable import write_failed

__all__ = ["CleanLevel", "build_steps", "chosen_components", "clean", "read_request", "update_plan"]

CleanLevel = Literal["objects", "tree", "all"]


def read_request(name: str, home: YardHome) -> BuildRequest:
    """What the build of that name was asked for with."""
    path = home.build(name).request_file
    try:
        said = decode(RecipeIdentity, json.loads(path.read_text()), where=str(path), strict=False)
    except FileNotFoundError as error:
        names = [item.parent.name for item in home.builds.glob("*/request.json")]
        raise UsageError(
            f"there is no build {name!r}", hint=nearest_hint(name, names, what="build")
        ) from error
    except (OSError, ValueError, UsageError) as error:
        raise ResultsDamaged(f"{path} cannot be read", why=str(error)) from error
    settings: dict[str, dict[str, Any]] = {
        component: dict(values) for component, values in said.settings.items()
    }
    return BuildRequest(
        recipe=said.name, variant=said.variant, version=said.version, settings=settings
    )


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


def update_plan(plan: Plan, components: Iterable[Component], home: YardHome) -> Plan | None:
    """A plan that brings sources and working copies to the newest; None when nothing can move.

    The working copies stay where they are, and so do their objects: only files that changed get a
    new time, and only what depends on them is compiled again.
    """
    steps = []
    for part in components:
        actions = _update_actions(part, home)
        if actions:
            tree = next(step for step in plan.steps if step.name == f"{part.name}/tree")
            steps.append(
                Step(
                    name=f"{part.name}/update",
                    component=part.name,
                    title="bring the source to the newest",
                    actions=actions,
                    variables=tree.variables,
                    network=True,
                    root=tree.root,
                )
            )
    if not steps:
        return None
    return Plan(
        name=plan.name,
        folder=plan.folder,
        components=plan.components,
        steps=tuple(steps),
        jobs=plan.jobs,
        jobs_why=plan.jobs_why,
        runner_variables=plan.runner_variables,
    )


def _update_actions(part: Component, home: YardHome) -> tuple[Action, ...]:
    recipe, tree = part.recipe, Path(part.tree)
    where = f"{part.name}: source"
    fresh = update_actions(
        recipe.source, destination=Path(part.source), downloads=home.downloads, where=where
    )
    if not fresh.actions:
        return ()
    actions: list[Action] = list(fresh.actions)
    if fresh.kind == "git":
        # What patches and preparation (hipify) changed goes first; files that git ignores, the
        # build folder among them, stay.
        actions += [
            Command(argv=("git", "-C", str(tree), *words))
            for words in (
                ("reset", "--hard"),
                ("clean", "-fd"),
                ("submodule", "foreach", "--recursive", "git reset --hard && git clean -fd"),
            )
        ]
        actions += update_actions(
            recipe.source, destination=tree, downloads=home.downloads, where=where
        ).actions
    else:
        actions.append(Command(argv=("cp", "-a", "--update", "-T", "--", part.source, str(tree))))
    for name in recipe.patches:
        path = str(Path(recipe.folder, name))
        actions.append(Command(argv=("patch", "-p1", "--forward", "-i", path), folder=str(tree)))
    actions += [
        Command(argv=command.run, folder=str(tree / command.folder)) for command in recipe.prepare
    ]
    return tuple(actions)


def clean(
    plan: Plan, folder: BuildFolder, components: Iterable[Component], level: CleanLevel
) -> tuple[Path, ...]:
    """Remove objects, or working copies with all that was generated into them, or everything.

    A working copy that is removed is made anew from its source at the next build, with patches and
    preparation, so nothing that a code generator wrote into it survives.
    """
    if level == "all":
        gone = [folder.folder]
    else:
        gone = []
        for part in components:
            tree = Path(part.tree)
            build = part.recipe.python.build_folder if part.recipe.builder == "python" else "build"
            gone += [tree / build if level == "objects" else tree, folder.dist(part.name)]
            gone += [
                folder.state(step.name)
                for step in plan.steps
                if step.component == part.name
                and not step.name.endswith("/fetch")
                and (level == "tree" or not step.name.endswith("/tree"))
            ]
            gone += [folder.report(part.name), folder.meter_log(part.name)]
    removed = [path for path in gone if path.exists()]
    for path in removed:
        _remove(path)
    return tuple(removed)


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            with suppress(FileNotFoundError):
                path.unlink()
    except OSError as error:
        raise write_failed(path, error, kept="what could not be removed") from error
