"""Every requested option: did it reach CMake, and did the finished module come out that way.

The trap this is for: PyTorch forwards only some variables to CMake, a project may change an option
that it was given, and a kept CMakeCache.txt makes a new request do nothing. All of them are silent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from torchyard.build.verify.check import Checked, Subject
from torchyard.build.verify.cmake_cache import (
    CacheEntry,
    as_truth,
    find_cache,
    read_cache,
    same_value,
)
from torchyard.build.verify.torch_config import (
    IMPLIED,
    READ_FROM_ENVIRONMENT,
    RENAMED,
    config_name,
    config_value,
)
from torchyard.core.build_plan import Component
from torchyard.core.build_record import CheckFinding, OptionVerdict, OptionVerdictKind
from torchyard.core.recipe import Scalar

__all__ = ["cache_of", "check_options", "judge_option", "names_in_cmake_files"]

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_options(subject: Subject) -> Checked:
    """A verdict for each option of the recipe; a request that was not met is a failure."""
    component = subject.component
    recipe = component.recipe
    path = cache_of(component)
    cache = read_cache(path) if path is not None else None
    not_declared = [
        name for name in recipe.options if cache and name in cache and not cache[name].declared
    ]
    read = names_in_cmake_files(Path(component.tree), not_declared)
    is_torch = recipe.verify.import_name == "torch"
    config = subject.module.config if subject.module is not None else {}
    verdicts = tuple(
        judge_option(
            name,
            requested,
            cache=cache,
            config=config,
            is_torch=is_torch,
            excused=name in recipe.verify.ignored_options or name in read or _cmakes_own(name),
        )
        for name, requested in recipe.options.items()
    )
    findings = [finding for verdict in verdicts if (finding := _finding(verdict, path)) is not None]
    return Checked(findings=tuple(findings), options=verdicts)


def _cmakes_own(name: str) -> bool:
    """Whether CMake itself reads the variable, so that no project has to mention it."""
    return name.startswith("CMAKE_") or name in ("BUILD_SHARED_LIBS", "BUILD_TESTING")


def cache_of(component: Component) -> Path | None:
    """The CMakeCache.txt of a component; None for a project without one."""
    recipe = component.recipe
    tree = Path(component.tree)
    folder = recipe.cmake.folder if recipe.builder == "cmake" else ""
    likely = recipe.python.build_folder if recipe.builder == "python" else "build"
    return find_cache(tree, project=tree / folder, likely=likely)


def names_in_cmake_files(tree: Path, names: Iterable[str]) -> set[str]:
    """Those of the names that some CMake file of the tree mentions.

    A project may read a variable that it never declares: OpenBLAS does so with NO_LAPACK.
    """
    missing = set(names)
    found: set[str] = set()
    for folder, folders, files in os.walk(tree) if missing else ():
        # What CMake itself wrote mentions every name that it was given.
        folders[:] = [name for name in folders if name not in (".git", "CMakeFiles")]
        for name in files:
            if name == "CMakeLists.txt" or name.endswith(".cmake"):
                text = Path(folder, name).read_text(encoding="utf-8", errors="replace")
                found |= missing & set(_WORD.findall(text))
                missing -= found
        if not missing:
            break
    return found


def judge_option(
    name: str,
    requested: Scalar,
    *,
    cache: Mapping[str, CacheEntry] | None,
    config: Mapping[str, str],
    is_torch: bool = False,
    excused: bool = False,
) -> OptionVerdict:
    """What became of one option: the finished module has the last word, then the cache."""
    asked = _text(requested)
    name = name.partition(":")[0]
    cached_as, wanted = name, asked
    if is_torch:
        cached_as = RENAMED.get(name, name)
        if name in IMPLIED and as_truth(asked):
            cached_as, wanted = IMPLIED[name]
    entry = cache.get(cached_as) if cache is not None else None
    cached = entry.value if entry is not None else None
    told = config.get(config_name(cached_as)) if is_torch else None

    def verdict(kind: OptionVerdictKind, why: str) -> OptionVerdict:
        return OptionVerdict(
            name=name, requested=asked, cache=cached, config=told, verdict=kind, why=why
        )

    if told is not None:
        if same_value(config_value(cached_as, wanted), told):
            return verdict("honoured", f"the finished module says {config_name(cached_as)}={told}")
        return verdict("overridden", f"the finished module says {config_name(cached_as)}={told}")
    if entry is not None:
        if not same_value(wanted, entry.value):
            return verdict("overridden", f"CMakeCache.txt has {cached_as}={entry.value}")
        if entry.declared or excused:
            return verdict("honoured", f"CMakeCache.txt has {cached_as}={entry.value}")
        return verdict(
            "unknown", "it reached CMakeCache.txt, and no CMake file of the project mentions it"
        )
    if cache is None:
        return verdict("unknown", "the build has no CMakeCache.txt")
    if excused:
        return verdict("unknown", "the recipe says that no CMakeCache.txt shows it")
    if is_torch and name in READ_FROM_ENVIRONMENT:
        return verdict("unknown", "it is read from the environment, and not kept")
    if is_torch and name in IMPLIED:
        return verdict("honoured", "off is what happens without it")
    return verdict("ignored", "it never reached CMakeCache.txt")


def _finding(verdict: OptionVerdict, path: Path | None) -> CheckFinding | None:
    if verdict.verdict == "overridden":
        return CheckFinding(
            check="options",
            level="failure",
            what=f"{verdict.name}={verdict.requested} was asked for and overridden",
            why=f"{verdict.why}; a dependency was not found, or an old cache was kept",
            mend="read the configure log for the reason, mend it, and build again with --force",
        )
    if verdict.verdict == "ignored":
        # What a project does not know cannot be switched on; off is what it already is.
        off = as_truth(verdict.requested) is False
        return CheckFinding(
            check="options",
            level="warning" if off else "failure",
            what=f"{verdict.name}={verdict.requested} was asked for and ignored",
            why=f"{verdict.why} ({path}): the project does not forward it, or has no such option",
            mend=f"take {verdict.name} out of the recipe, correct its name, or list it in verify.ignored-options",
        )
    if (
        verdict.verdict == "unknown"
        and verdict.cache is not None
        and as_truth(verdict.cache) is not False
    ):
        return CheckFinding(
            check="options",
            level="warning",
            what=f"{verdict.name}={verdict.requested} may have no effect",
            why=verdict.why,
            mend=f"look for {verdict.name} in the project's CMake files; correct the name, or list it in verify.ignored-options",
        )
    return None


def _text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)
