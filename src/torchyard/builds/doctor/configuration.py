"""Checks: source folder, existing CMakeCache.txt, and options that never reach the build of PyTorch.

`route_of` knows which variables the setup of PyTorch forwards to CMake and which are read elsewhere.
"""

from __future__ import annotations

import configparser
import difflib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from torchyard.builds.compatibility import (
    ReleaseFacts,
    known_releases,
    pytorch_variables,
    release_facts,
    version_in_range,
)
from torchyard.builds.doctor.context import DoctorContext
from torchyard.builds.doctor.finding import DoctorFinding, blocker, note, warning
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


Route = Literal["cmake", "environment", "front end", "nowhere"]
"""`cmake`: becomes a CMake variable. `environment`: read by find modules. `front end`: read by the
Python part of the build. `nowhere`: ignored."""

_PREFIXES: Final = ("BUILD_", "USE_", "CMAKE_")
_SUFFIXES: Final = ("EXITCODE", "EXITCODE__TRYRUN_OUTPUT")

_SWITCH: Final = re.compile(r"(?:NO|WITH|WITHOUT|ENABLE|DISABLE|DEBUG)_(\w+)")
_NEAR: Final = 0.87
"""Similarity above which a name counts as a misspelling: USE_MKLDN of USE_MKLDNN, but not
USE_SYSTEM_FP16 of USE_SYSTEM_FXDIV."""


def route_of(name: str, release: str) -> Route:
    """Return how a build of that PyTorch release uses a variable."""
    variables = pytorch_variables()
    if name in variables.cmake_in:
        return "cmake" if version_in_range(variables.cmake_in[name], release) else "nowhere"
    if name.startswith(_PREFIXES) or name.endswith(_SUFFIXES) or name in variables.cmake:
        return _prefix_route(name, release)
    if name in variables.front_end:
        return "front end"
    return "environment" if name in variables.environment else "nowhere"


def _prefix_route(name: str, release: str) -> Route:
    # Switches of the front end that share the prefix; removed together with setup.py.
    if name in {"CMAKE_FRESH", "CMAKE_ONLY"}:
        return "front end" if version_in_range(">=2.8,<2.14", release) else "nowhere"
    if name == "USE_NIGHTLY":
        return "front end" if version_in_range(">=2.9,<2.14", release) else "nowhere"
    return "cmake"


def looks_like_option(name: str) -> bool:
    """Return whether a variable is probably meant as an option of the PyTorch build.

    Variables such as CUDA_, NCCL_ and TORCH_ often configure programs at run time and do not count.
    """
    switch = _SWITCH.fullmatch(name)
    if switch is not None:
        return f"USE_{switch[1]}" in pytorch_variables().options
    if name in {"_GLIBCXX_USE_CXX11_ABI", "FLASH_ATTENTION_MAX_JOBS"}:
        return True
    return name.startswith(("USE_", "BUILD_")) or nearest_option(name) != ""


def nearest_option(name: str) -> str:
    """Return the option that a name probably misspells; empty for a valid or unrelated name."""
    variables = pytorch_variables()
    if name in (*variables.options, *variables.cmake) or name.startswith("CMAKE_"):
        return ""
    valid = [*variables.options, *variables.cmake]
    return next(iter(difflib.get_close_matches(name, valid, n=1, cutoff=_NEAR)), "")


def examine_variables(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check options and variables without effect."""
    for recipe, facts in context.pytorch_recipes():
        options = dict.fromkeys(recipe.options, "the option")
        variables = dict.fromkeys(recipe.environment.variables, "the variable")
        if context.plan is None:
            variables |= dict.fromkeys(context.environ, "the variable")
        candidates = {name: kind for name, kind in variables.items() if looks_like_option(name)}
        for name, kind in (candidates | options).items():
            yield from _check_variable(name, kind, facts)
        yield from _install_prefix(context.settings(recipe), facts)
    if not context.recipes:
        newest = release_facts("pytorch", known_releases("pytorch")[-1])
        for name in filter(looks_like_option, context.environ):
            yield from _check_variable(name, "the variable", newest)


def _check_variable(name: str, kind: str, facts: ReleaseFacts) -> Iterator[DoctorFinding]:
    near = nearest_option(name)
    if route_of(name, facts.version) == "nowhere":
        yield warning(
            f"{kind} {name} has no effect in pytorch {facts.version}",
            why="names that start with BUILD_, USE_ or CMAKE_, and a fixed list of others, become"
            " CMake variables; all others are silently ignored",
            fix=_suggestion(name, near),
        )
    elif near and route_of(name, facts.version) == "cmake":
        yield warning(
            f"{kind} {name} is passed to CMake, which has no option of that name",
            why="a misspelt option is silently ignored",
            fix=f"did you mean {near}?",
        )


def _suggestion(name: str, near: str) -> str:
    if name in {"CMAKE_FRESH", "CMAKE_ONLY"}:
        return "delete the build folder instead; the switch was removed with setup.py"
    if name == "_GLIBCXX_USE_CXX11_ABI":
        return "remove it: from 2.7 on only the new ABI is built"
    if name.startswith("NO_"):
        return f"USE_{name.removeprefix('NO_')}=0"
    if near:
        return f"did you mean {near}?"
    return f"pass it to CMake: CMAKE_ARGS=-D{name}=VALUE, or remove it"


def _install_prefix(settings: dict[str, str], facts: ReleaseFacts) -> Iterator[DoctorFinding]:
    if settings.get("CMAKE_INSTALL_PREFIX") and version_in_range("<2.14", facts.version):
        yield blocker(
            "CMAKE_INSTALL_PREFIX is set",
            why=f"setup.py of pytorch {facts.version} then exits at once: it installs into its own tree",
            fix="unset CMAKE_INSTALL_PREFIX",
        )
    if settings.get("CFLAGS") and not settings.get("CXXFLAGS"):
        yield note(
            "CFLAGS is set and CXXFLAGS is not",
            why="PyTorch then also uses CFLAGS for C++",
            fix="set CXXFLAGS as well",
        )
