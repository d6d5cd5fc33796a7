"""What a plan takes from this machine's files, and so an image must be given. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from torchyard.build.environments.base_variables import SYSTEM_PATH
from torchyard.build.sources.addresses import local_path_of
from torchyard.core.build_plan import Component, Plan
from torchyard.core.recipe import SourceTable
from torchyard.errors import UsageError

__all__ = ["LocalInput", "local_inputs", "refuse_foreign_python"]


@dataclass(frozen=True, kw_only=True)
class LocalInput:
    """A file or folder of this machine."""

    path: str
    name: str
    """What it is called beside the definition, below `local`, and inside the image."""


def local_inputs(plan: Plan) -> tuple[LocalInput, ...]:
    """Folders, archives and repositories on this machine, and patches of recipes."""
    found: dict[str, LocalInput] = {}
    for component in plan.components:
        for path, name in _paths(component):
            found.setdefault(path, LocalInput(path=path, name=name))
    return tuple(found.values())


def _paths(component: Component) -> Iterator[tuple[str, str]]:
    recipe = component.recipe
    source = _source_path(recipe.source)
    if source:
        ending = Path(source).name if recipe.source.tarball else "source"
        yield source, f"{component.name}-{_plain(ending)}"
    for number, name in enumerate(recipe.patches, start=1):
        yield str(Path(recipe.folder, name)), f"{component.name}-{number}.patch"


def _source_path(source: SourceTable) -> str:
    tables = (source.git, source.folder, source.tarball, source.sdist, source.debian)
    given = [table for table in tables if table is not None]
    only = given[0] if len(given) == 1 else None
    chosen = getattr(source, source.use) if source.use else only
    if chosen is None:
        return ""
    if chosen is source.folder and source.folder:
        return str(Path(source.folder.path).expanduser().absolute())
    address = getattr(chosen, "url", "")
    # `github.com:owner/name` is an address too, and no path.
    starts = ("/", "./", "../", "~", "file://")
    path = local_path_of(address) if address.startswith(starts) else None
    return str(path.expanduser().absolute()) if path else ""


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._+-" else "_" for letter in name)


def refuse_foreign_python(plan: Plan) -> None:
    """A plan that builds with an interpreter of this machine, or against its packages, stays here."""
    mend = 'build in an environment of its own: --set environment.use="venv", without --base'
    for step in plan.steps:
        constraint = dict(step.variables).get("PIP_CONSTRAINT", "")
        if constraint.startswith(Path(plan.folder).as_uri()):
            raise UsageError(
                f"{plan.name} builds against packages of this machine, which no image has",
                why="its environment has a base",
                hint=f"{mend}; or export a script",
            )
    system = SYSTEM_PATH.split(":")
    for component in plan.components:
        python = component.python
        if not python or PurePosixPath(python).is_relative_to(plan.folder):
            continue
        if "/" in python and str(PurePosixPath(python).parent) not in system:
            raise UsageError(
                f"{plan.name} builds with {python} of this machine, which no image has",
                hint=f"{mend}; or export a script",
            )
