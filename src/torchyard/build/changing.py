"""Changing a build that is there: compile what was edited, clean. `updating` brings it to the tip.

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

from torchyard.build import BUILD_PREFIX
from torchyard.build.components import BuildRequest
from torchyard.build.layout import BuildFolder, YardHome
from torchyard.core.build_plan import Component, Plan
from torchyard.core.build_record import RecipeIdentity
from torchyard.core.records import decode, nearest_hint
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.results.durable import write_failed

__all__ = [
    "CleanLevel",
    "build_steps",
    "built_on",
    "chosen_components",
    "clean",
    "read_cache",
    "read_request",
    "remove_build",
    "used_lock",
]

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
