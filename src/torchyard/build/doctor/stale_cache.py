"""Check: a CMakeCache.txt left from before agrees with what is going to be built."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from torchyard.build.coupling import allows
from torchyard.build.doctor.patient import Check, Patient
from torchyard.build.doctor.submodules import folder_source
from torchyard.build.verify.cmake_cache import CacheEntry, read_cache, same_value
from torchyard.core.doctor_finding import DoctorFinding
from torchyard.core.recipe import Recipe

__all__ = ["CHECK"]


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    for recipe in patient.recipes:
        component = patient.component(recipe)
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
            yield from _judge(patient, recipe, tree, path, cache)


def _judge(
    patient: Patient, recipe: Recipe, tree: Path, path: Path, cache: dict[str, CacheEntry]
) -> Iterator[DoctorFinding]:
    mend = f"rm -rf {shlex.quote(str(path.parent))}"
    home = cache.get("CMAKE_HOME_DIRECTORY")
    if home is not None and Path(home.value).resolve() != tree.resolve():
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks",
            what=f"{path} was made for {home.value}",
            why="CMake refuses: `the source does not match the source used to generate cache`",
            mend=mend,
        )
        return
    facts = patient.facts(recipe)
    # From 2.14 on a variable that is set wins over the cache at every configure.
    if facts is None or facts.project != "pytorch" or allows(">=2.14", facts.version):
        return
    settings = patient.settings(recipe)
    differing = [
        f"{name} is {cache[name].value}, asked for {settings[name]}"
        for name in recipe.options
        if name in cache and not same_value(cache[name].value, settings[name])
    ]
    if differing:
        yield DoctorFinding(
            check=CHECK.name,
            severity="warns",
            what=f"{path} holds other options than the recipe",
            why=f"pytorch {facts.version} does not configure again when the file is there, and"
            " keeps the old ones",
            mend=f"{mend}, or set CMAKE_FRESH=1" if allows(">=2.8", facts.version) else mend,
            detail=tuple(differing),
        )


CHECK = Check(name="stale-cache", looks_at="a CMakeCache.txt from before", run=_examine)
