"""Settings of the user without effect are errors: unknown names, tables that the build ignores."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from torchyard.builds.compatibility import pytorch_variables
from torchyard.builds.recipe import Recipe
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError

_FIELDS: Final = tuple(field.name.replace("_", "-") for field in fields(Recipe))
_BUILDER_TABLES: Final = ("cmake", "python", "scons", "make")
_STACK_KEYS: Final = ("version", "variant", "environment", "components", "disk-gib", "summary")
_ENVIRONMENT_TABLES: Final = ("conda", "debian-root")
_OF_THE_WHOLE_BUILD: Final = (
    *("python", "base", "cuda", "gcc", "path", "include", "libraries"),
    *_ENVIRONMENT_TABLES,
)
"""Keys of `environment` that are read from the requested recipe only."""
_SOURCES: Final = ("git", "folder", "tarball", "sdist", "debian")
_NEAR: Final = 0.8


def check_setting(key: str, path: list[str], recipe: Recipe, *, top: Recipe) -> None:
    """Raise UsageError if a setting of a recipe has no effect; `top` is the requested recipe."""
    path = [part.rstrip("+-") for part in path]
    hint = _hint(path, recipe, top) if recipe is top or not recipe.components else ""
    if hint:
        raise UsageError(f"--set {key}: has no effect in {recipe.name}", hint=hint)


def _hint(path: list[str], recipe: Recipe, top: Recipe) -> str:
    first, second = path[0].replace("_", "-"), path[1].replace("_", "-") if path[1:] else ""
    environment = recipe.environment if recipe is top else top.environment
    if first in ("name", "folder") and not second:
        return "use --name for the name of the build" if first == "name" else "remove it"
    if recipe.components and first not in _STACK_KEYS:
        names = ", ".join(table.recipe for table in recipe.components)
        return f"{recipe.name} is a stack: put the component before the key, one of {names}"
    if first in _BUILDER_TABLES and second and first != recipe.builder:
        return f"the builder is {recipe.builder!r}: set {recipe.builder}.KEY, or set builder"
    if first == "environment" and recipe is not top and second in _OF_THE_WHOLE_BUILD:
        return f"all components share one environment: --set {'.'.join(path)}=..."
    if first == "environment" and second in _ENVIRONMENT_TABLES and second != environment.use:
        return f"the environment is {environment.use!r}: add --set environment.use={second}"
    if first == "source" and second in _SOURCES and recipe.source.use not in (None, second):
        return f"the source is {recipe.source.use!r}: add --set source.use={second}"
    return _option_hint(path[0], recipe) if first not in _FIELDS and not second else ""


def _option_hint(name: str, recipe: Recipe) -> str:
    """Return a hint for a name that is probably no option; `options.NAME` is never questioned."""
    fields_near = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=_NEAR)
    if fields_near and name.islower():
        return f"did you mean {fields_near[0]!r}? Set an option of this name with options.{name}"
    if recipe.known_release != "pytorch" or name.startswith("CMAKE_"):
        return ""
    table = pytorch_variables()
    valid = (
        *(*table.options, *table.cmake, *table.environment, *table.front_end, *table.cmake_in),
        *recipe.verify.ignored_options,
    )
    near = difflib.get_close_matches(name, valid, n=1, cutoff=_NEAR)
    if name in valid or not near:
        return ""
    return f"did you mean {near[0]!r}? To pass it anyway, set options.{name}"


def changed_list(values: object, key: str, change: Any) -> list[Any]:
    """Return a list with entries added (`KEY+`) or removed (`KEY-`).

    An entry is removed by its full text or by its name: `cmake` removes `cmake=3.26`.
    """
    entries = list(values) if isinstance(values, (list, tuple)) else []
    changes = change if isinstance(change, list) else [change]
    if key.endswith("+"):
        for item in changes:
            entries += [] if item in entries else [item]
        return entries
    for item in changes:
        kept = [entry for entry in entries if item not in (entry, _name(entry))]
        if kept == entries:
            names = [str(_name(entry)) for entry in entries]
            raise UsageError(
                f"--set {key}={item}: the list has no {item!r}",
                hint=nearest_hint(str(item), names, what="entry"),
            )
        entries = kept
    return entries


def _name(entry: object) -> object:
    if not isinstance(entry, str):
        return entry
    return next(iter(_name_parts(entry)), entry)


def _name_parts(entry: str) -> Iterator[str]:
    for index, letter in enumerate(entry):
        if letter in "=<>!~ [;@":
            yield entry[:index]
            return


def add_setting(settings: dict[str, Any], key: str, value: Any) -> None:
    """Add a setting; several additions to a list, or removals from it, are collected."""
    if key.endswith(("+", "-")):
        settings[key] = [*settings.get(key, []), *(value if isinstance(value, list) else [value])]
    else:
        settings[key] = value


def split_variant(settings: Mapping[str, Any], variant: str) -> tuple[str, dict[str, Any]]:
    """Return the variant, which a setting may choose, and the other settings."""
    rest = dict(settings)
    return str(rest.pop("variant", variant)), rest
