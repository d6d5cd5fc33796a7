"""Checks: a source folder has its submodules, and an existing CMakeCache.txt matches the plan.

Git must also accept the folder (`safe.directory`).
"""

from __future__ import annotations

import configparser
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.builds.cmake_cache import CacheEntry, read_cache, same_value
from torchyard.builds.compatibility import version_in_range
from torchyard.builds.doctor.context import DoctorContext
from torchyard.builds.doctor.finding import DoctorFinding, blocker, warning
from torchyard.builds.recipe import FolderSource, Recipe
from torchyard.builds.sources import used_source_kind
from torchyard.errors import UsageError

_SHOWN: Final = 5


def folder_source(recipe: Recipe) -> FolderSource | None:
    """Return the source folder of a recipe; None for other kinds of source."""
    try:
        kind = used_source_kind(recipe.source, recipe.name)
    except UsageError:
        return None
    return recipe.source.folder if kind == "folder" else None


def examine_submodules(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check submodules of a source folder."""
    for recipe in context.recipes:
        source = folder_source(recipe)
        if source is None:
            continue
        folder = Path(source.path).expanduser()
        if not folder.is_dir():
            yield blocker(
                f"the source folder {folder} does not exist",
                why=f"it is the source of the recipe {recipe.name}",
                fix=f"--set source.folder.path=FOLDER, or clone it: git clone --recursive URL"
                f" {shlex.quote(str(folder))}",
            )
            continue
        yield from _missing(folder)
        if (folder / ".git").exists():
            yield from _distrusted(context, folder)


def _missing(folder: Path) -> Iterator[DoctorFinding]:
    empty = [path for path in _submodule_paths(folder) if not _filled(folder / path)]
    if not empty:
        return
    more = f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else ""
    quoted = shlex.quote(str(folder))
    if (folder / ".git").exists():
        fix = f"git -C {quoted} submodule update --init --recursive"
    else:
        fix = "clone with --recursive, or use the release archive that contains the submodules"
    yield blocker(
        f"submodules of {folder} are empty: {', '.join(empty[:_SHOWN])}{more}",
        why="the configure step would fail with `does not contain a CMakeLists.txt`",
        fix=fix,
    )


def _submodule_paths(folder: Path) -> list[str]:
    # git indents its settings, which configparser reads as continued lines.
    try:
        lines = (folder / ".gitmodules").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string("\n".join(line.strip() for line in lines))
    except configparser.Error:
        return []
    return [parser[section]["path"] for section in parser.sections() if "path" in parser[section]]


def _filled(folder: Path) -> bool:
    return folder.is_dir() and any(item.name != ".git" for item in folder.iterdir())


def _distrusted(context: DoctorContext, folder: Path) -> Iterator[DoctorFinding]:
    git = context.toolbox.find("git")
    if git is None:
        return
    result = context.run_program((git.path, "-C", str(folder), "rev-parse", "HEAD"))
    if "dubious ownership" in result.text:
        yield warning(
            f"git refuses to read {folder}",
            why="it belongs to another user; the version would lack the commit",
            fix=f"git config --global --add safe.directory {shlex.quote(str(folder))}",
        )


def examine_stale_cache(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check an existing CMakeCache.txt."""
    for recipe in context.recipes:
        component = context.component(recipe)
        trees = [Path(component.tree)] if component else []
        source = folder_source(recipe)
        if source is not None:
            trees.append(Path(source.path).expanduser())
        for tree in trees:
            path = tree / recipe.python.build_folder / "CMakeCache.txt"
            try:
                cache = read_cache(path)
            except OSError:
                continue
            yield from _check_cache(context, recipe, tree, path, cache)


def _check_cache(
    context: DoctorContext, recipe: Recipe, tree: Path, path: Path, cache: dict[str, CacheEntry]
) -> Iterator[DoctorFinding]:
    fix = f"rm -rf {shlex.quote(str(path.parent))}"
    home = cache.get("CMAKE_HOME_DIRECTORY")
    if home is not None and Path(home.value).resolve() != tree.resolve():
        yield blocker(
            f"{path} was generated for {home.value}",
            why="CMake would fail with `the source does not match the source used to generate cache`",
            fix=fix,
        )
        return
    facts = context.facts(recipe)
    # From 2.14 on, a variable that is set overrides the cache at every configure.
    if facts is None or facts.project != "pytorch" or version_in_range(">=2.14", facts.version):
        return
    settings = context.settings(recipe)
    differing = [
        f"{name} is {cache[name].value}, requested {settings[name]}"
        for name in recipe.options
        if name in cache and not same_value(cache[name].value, settings[name])
    ]
    if differing:
        yield warning(
            f"{path} has other options than the recipe",
            why=f"pytorch {facts.version} does not reconfigure if the file exists, and keeps the old"
            " options",
            fix=f"{fix}, or set CMAKE_FRESH=1" if version_in_range(">=2.8", facts.version) else fix,
            detail=tuple(differing),
        )
