"""From the recipe a user names to the ordered list of components to build. Reads recipe files.

A stack's parts, the recipes a recipe needs and the settings meant for each come together here.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchyard.build.coupling import matching_companions, release_facts
from torchyard.build.recipe_file import load_recipe_file, read_recipe
from torchyard.core.recipe import ComponentTable, EnvironmentTable, Recipe
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError

__all__ = ["BuildRequest", "ResolvedBuild", "resolve"]


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What a user asks for."""

    recipe: str
    variant: str = ""
    version: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Component -> key -> value; the empty name means the recipe that was named."""
    machine: str = field(default_factory=platform.machine)
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True, kw_only=True)
class ResolvedBuild:
    """The named recipe and its components, each behind those it needs."""

    recipe: Recipe
    components: tuple[Recipe, ...]

    @property
    def environment(self) -> EnvironmentTable:
        """The environment all components share: the one of the recipe that was named."""
        return self.recipe.environment


def resolve(request: BuildRequest) -> ResolvedBuild:
    """Read every recipe that is needed; raises UsageError for loops and unknown components."""
    file = load_recipe_file(request.recipe, folder=request.folder)
    own = {**request.settings.get("", {}), **request.settings.get(file.name, {})}
    top = read_recipe(
        file,
        variant=request.variant,
        version=request.version,
        settings=own,
        machine=request.machine,
    )
    parts: dict[str, Recipe] = {}
    if top.components:
        for table in top.components:
            recipe = _part(table, request, top)
            if recipe.name in parts:
                raise UsageError(
                    f"{top.name}: {recipe.name!r} is a component twice",
                    hint="leave one out, or give its recipe file another `name`",
                )
            parts[recipe.name] = recipe
    else:
        parts[top.name] = top
    _add_needed(parts, request)
    for name in request.settings:
        if name and name not in parts and name != top.name:
            raise UsageError(
                f"--set {name}/...: {top.name} has no component {name!r}",
                hint=nearest_hint(name, tuple(parts), what="component"),
            )
    return ResolvedBuild(recipe=top, components=_ordered(parts))


def _part(table: ComponentTable, request: BuildRequest, top: Recipe) -> Recipe:
    file = load_recipe_file(table.recipe, folder=Path(top.folder))
    recipe = read_recipe(
        file,
        variant=table.variant,
        version=table.version,
        settings={**table.settings, **request.settings.get(file.name, {})},
        machine=request.machine,
    )
    return replace(recipe, needs=tuple(dict.fromkeys((*recipe.needs, *table.needs))))


def _add_needed(parts: dict[str, Recipe], request: BuildRequest) -> None:
    waiting = [name for recipe in parts.values() for name in recipe.needs]
    while waiting:
        name = waiting.pop()
        if name in parts:
            continue
        file = load_recipe_file(name)
        parts[name] = read_recipe(
            file,
            version=_coupled_version(name, parts),
            settings=request.settings.get(name, {}),
            machine=request.machine,
        )
        waiting += parts[name].needs


def _coupled_version(name: str, parts: Mapping[str, Recipe]) -> str:
    """The release of a needed recipe that belongs to the PyTorch of this build, where one does."""
    torch = parts.get("pytorch")
    if torch is None:
        return ""
    if name == "arm-compute-library":
        return release_facts("pytorch", torch.version).acl
    return matching_companions(torch.version).get(name, "")


def _ordered(parts: Mapping[str, Recipe]) -> tuple[Recipe, ...]:
    """Each recipe behind those it needs; the order of the file where there is a choice."""
    done: dict[str, Recipe] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in done:
            return
        if name in trail:
            loop = " -> ".join((*trail[trail.index(name) :], name))
            raise UsageError(f"recipes need each other in a circle: {loop}", hint="mend `needs`")
        for needed in parts[name].needs:
            visit(needed, (*trail, name))
        done[name] = parts[name]

    for name in parts:
        visit(name, ())
    return tuple(done.values())
