"""Sources of components: git, folder, tarball, sdist, Debian source package; one module per kind.

A source is fetched once into a folder that nothing changes; builds copy it. Fetching is expressed
as actions, so that it can be printed and exported; `running.steps` performs those that are not
commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torchyard.builds.recipe import SourceKind, SourceTable
from torchyard.builds.sources import debian, git, local_folder, sdist, tarball
from torchyard.builds.sources.fetch_plan import FetchPlan, SourceIdentity
from torchyard.errors import UsageError

__all__ = [
    "SOURCES",
    "FetchPlan",
    "Source",
    "SourceIdentity",
    "fetch_actions",
    "source_identity",
    "update_actions",
    "used_kind",
]


class Source(Protocol):
    """What a module of this family gives; `table` is the recipe's table of its kind."""

    def fetch_actions(
        self, table: Any, *, destination: Path, downloads: Path, where: str
    ) -> FetchPlan:
        """How the source gets to `destination`; `where` is the recipe's key, for errors."""

    def update_actions(
        self, table: Any, *, destination: Path, downloads: Path, where: str
    ) -> FetchPlan:
        """How what lies at `destination` is brought to the newest; no actions if it never moves."""

    def source_identity(self, table: Any, destination: Path) -> SourceIdentity:
        """Which source it is that lies at `destination`."""


SOURCES: Mapping[SourceKind, Source] = {
    "git": git,
    "folder": local_folder,
    "tarball": tarball,
    "sdist": sdist,
    "debian": debian,
}


def fetch_actions(
    source: SourceTable, *, destination: Path, downloads: Path, where: str
) -> FetchPlan:
    """How the source that the recipe uses gets to `destination`, whole or not at all.

    `where` names the recipe's table in errors: `pytorch: source`.
    """
    kind = used_kind(source, where)
    return SOURCES[kind].fetch_actions(
        getattr(source, kind), destination=destination, downloads=downloads, where=f"{where}.{kind}"
    )


def update_actions(
    source: SourceTable, *, destination: Path, downloads: Path, where: str
) -> FetchPlan:
    """How a fetched source is brought to the newest: a branch's tip, a folder's present state.

    Without actions when it never moves; `source_identity` before and after says what has changed.
    """
    kind = used_kind(source, where)
    return SOURCES[kind].update_actions(
        getattr(source, kind), destination=destination, downloads=downloads, where=f"{where}.{kind}"
    )


def source_identity(source: SourceTable, destination: Path) -> SourceIdentity:
    """Which source it is that lies at `destination`, for the record and the lock."""
    kind = used_kind(source, "source")
    return SOURCES[kind].source_identity(getattr(source, kind), destination)


def used_kind(source: SourceTable, where: str) -> SourceKind:
    """The kind that `use` names, or the only one there is a table of."""
    given = [kind for kind in SOURCES if getattr(source, kind) is not None]
    if source.use is None and len(given) == 1:
        return given[0]
    if source.use in given:
        return source.use
    tables = ", ".join(f"[{where}.{kind}]" for kind in given) or "none"
    if source.use is not None and source.use not in SOURCES:
        what = f"{where}.use is {source.use!r}, and there is no such kind of source"
        hint = f"one of: {', '.join(SOURCES)}"
    elif source.use is not None:
        what = f"{where}.use is {source.use!r}, but there is no table [{where}.{source.use}]"
        hint = f"write that table, or use one of: {', '.join(given) or 'none is given'}"
    elif given:
        what = f"{where}.use is missing, and there is more than one source"
        hint = f'write `use = "{given[0]}"` into [{where}], or `--set source.use={given[0]}`'
    else:
        what = f"{where} names no source"
        hint = f"write one of: {', '.join(f'[{where}.{kind}]' for kind in SOURCES)}"
    raise UsageError(what, why=f"tables given: {tables}", hint=hint)
