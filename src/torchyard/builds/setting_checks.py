"""Settings of the user without effect are errors: unknown names, tables that the build ignores."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from torchyard.builds.cmake_cache import cmake_bool, cmake_value
from torchyard.builds.compatibility import pytorch_variables
from torchyard.builds.recipe import Recipe
from torchyard.core.records import encode, nearest_hint
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
_JOB_VARIABLES: Final = ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL")
_NOT_BOOLEAN: Final = ("USE_CUSTOM_DEBINFO", "USE_LLVM", "USE_NIGHTLY", "USE_SANITIZER")
"""Options of PyTorch with other values than on and off, although their names start with USE_."""
_CHECKED_LIBRARIES: Final = {
    "USE_CUDA": "torch/lib/libtorch_cuda.so",
    "USE_ROCM": "torch/lib/libtorch_hip.so",
}
"""Switch -> the library that variants with it check at the end."""
_ONLY_WITH: Final = {"TORCH_CUDA_ARCH_LIST": "USE_CUDA", "PYTORCH_ROCM_ARCH": "USE_ROCM"}


def check_setting(
    key: str, path: list[str], recipe: Recipe, *, top: Recipe, parts: Iterable[Recipe]
) -> None:
    """Raise UsageError if a setting of a recipe has no effect.

    `top` is the requested recipe, and `parts` are its components.
    """
    path = [part.rstrip("+-") for part in path]
    hint = _hint(path, recipe, top) if recipe is top or not recipe.components else ""
    if path[0] == "environment" and not hint:
        hint = _toolkit_hint(path[1:], (top, *parts))
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
    if path[-1] in _JOB_VARIABLES:
        return f"Torchyard sets it by memory: use --jobs N, or --set {recipe.name}/jobs=N"
    return _option_hint(path[0], recipe) if first not in _FIELDS and not second else ""


def _toolkit_hint(path: list[str], recipes: tuple[Recipe, ...]) -> str:
    """Return a hint if no recipe of the build uses the version of CUDA, or of conda's gcc."""
    name = ".".join(path)
    if name not in ("cuda", "gcc") or (name == "gcc" and recipes[0].environment.use != "conda"):
        return ""
    if any("{" + name in str(encode(recipe)) for recipe in recipes):
        return ""
    return (
        f"nothing in this build uses {'a CUDA toolkit' if name == 'cuda' else 'gcc of conda'}:"
        " choose a variant that does, or remove it"
    )


def _option_hint(name: str, recipe: Recipe) -> str:
    """Return a hint for a name that is probably no option; `options.NAME` is never questioned."""
    fields_near = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=_NEAR)
    if fields_near and name.islower():
        return f"did you mean {fields_near[0]!r}? Set an option of this name with options.{name}"
    library = _CHECKED_LIBRARIES.get(name, "")
    value = cmake_value(recipe.options.get(name, ""))
    if library in recipe.verify.libraries and cmake_bool(value) is False:
        return f"the result of the variant {recipe.variant!r} must have {library}: choose another variant"
    switch = _ONLY_WITH.get(name, "")
    if (
        switch
        and cmake_bool(cmake_value(recipe.options.get(switch, ""))) is False
        and (switch in recipe.options)
    ):
        return f"{switch} is off: choose a variant that has it on, or set {switch}"
    if recipe.known_release != "pytorch" or name.startswith("CMAKE_"):
        return ""
    table = pytorch_variables()
    if name in table.options and name not in _NOT_BOOLEAN and cmake_bool(value) is None:
        return f"{value!r} is neither on nor off: give 1 or 0"
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
        remaining = [entry for entry in entries if item not in (entry, _name(entry))]
        if remaining == entries:
            names = [str(_name(entry)) for entry in entries]
            raise UsageError(
                f"--set {key}={item}: the list has no {item!r}",
                hint=nearest_hint(str(item), names, what="entry"),
            )
        entries = remaining
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
