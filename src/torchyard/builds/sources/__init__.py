"""Sources of components: git, folder, tarball, sdist, Debian source package; one module per kind.

A source is fetched once into a folder that stays unmodified; builds copy it. Fetching is expressed
as actions, so that it can be printed and exported; `running.steps` performs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torchyard.builds.recipe import SourceKind, SourceTable
from torchyard.builds.record import SourceIdentity
from torchyard.builds.sources import debian, git, local_folder, sdist, tarball
from torchyard.builds.sources.fetch_plan import FetchPlace, FetchPlan
from torchyard.errors import UsageError


class Source(Protocol):
    """The interface of a source module; `table` is the recipe's table of its kind."""

    def fetch_actions(self, table: Any, place: FetchPlace) -> FetchPlan:
        """Return the actions that fetch the source."""

    def update_actions(self, table: Any, place: FetchPlace) -> FetchPlan:
        """Return the actions that update a fetched source; none if it is pinned."""

    def source_identity(self, table: Any, destination: Path) -> SourceIdentity:
        """Identify the source at `destination`."""


SOURCES: Mapping[SourceKind, Source] = {
    "git": git,
    "folder": local_folder,
    "tarball": tarball,
    "sdist": sdist,
    "debian": debian,
}


def fetch_actions(source: SourceTable, place: FetchPlace) -> FetchPlan:
    """Return the actions that fetch the recipe's source atomically."""
    kind = used_source_kind(source, place.where)
    place = replace(place, where=f"{place.where}.{kind}")
    return SOURCES[kind].fetch_actions(getattr(source, kind), place)


def update_actions(source: SourceTable, place: FetchPlace) -> FetchPlan:
    """Return the actions that update a fetched source; none for a pinned source.

    A git checkout moves to the tip of its branch, a copied folder to the folder's present content.
    """
    kind = used_source_kind(source, place.where)
    place = replace(place, where=f"{place.where}.{kind}")
    return SOURCES[kind].update_actions(getattr(source, kind), place)


def source_identity(source: SourceTable, destination: Path) -> SourceIdentity:
    """Identify the source at `destination`, for the record and the lock file."""
    kind = used_source_kind(source, "source")
    return SOURCES[kind].source_identity(getattr(source, kind), destination)


def used_source_kind(source: SourceTable, where: str) -> SourceKind:
    """Return the kind of source given by `use`, or the only one that has a table."""
    kinds = [kind for kind in SOURCES if getattr(source, kind) is not None]
    if source.use is None and len(kinds) == 1:
        return kinds[0]
    if source.use in kinds:
        return source.use
    tables = ", ".join(f"[{where}.{kind}]" for kind in kinds) or "none"
    if source.use is not None and source.use not in SOURCES:
        what = f"{where}.use is {source.use!r}, which is not a kind of source"
        hint = f"one of: {', '.join(SOURCES)}"
    elif source.use is not None:
        what = f"{where}.use is {source.use!r}, but there is no table [{where}.{source.use}]"
        hint = f"add that table, or use one of: {', '.join(kinds) or 'none is given'}"
    elif kinds:
        what = f"{where}.use is missing, but there is more than one source"
        hint = f'add `use = "{kinds[0]}"` to [{where}], or use `--set source.use={kinds[0]}`'
    else:
        what = f"{where} has no source"
        hint = f"add one of: {', '.join(f'[{where}.{kind}]' for kind in SOURCES)}"
    raise UsageError(what, why=f"tables given: {tables}", hint=hint)
