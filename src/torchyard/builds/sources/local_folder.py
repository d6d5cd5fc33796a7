"""A folder on this machine, copied with its .git."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from torchyard.builds.recipe import FolderSource
from torchyard.builds.record import SourceIdentity
from torchyard.builds.sources.fetch_plan import (
    FetchPlace,
    FetchPlan,
    move_to_destination,
    on_this_machine,
    recreate_part_folder,
)
from torchyard.builds.sources.git import commit_of, is_dirty, submodule_commits
from torchyard.errors import UsageError


def fetch_actions(table: FolderSource, place: FetchPlace) -> FetchPlan:
    """Return the actions that copy the folder, with shared blocks where possible."""
    folder = _checked_folder(table, place.destination, place.where)
    return FetchPlan(
        kind="folder",
        summary=f"copy of {folder}",
        actions=(
            *recreate_part_folder(place.destination),
            on_this_machine("cp", "-a", "--reflink=auto", "--", f"{folder}/.", str(place.part)),
            *move_to_destination(place, place.part),
        ),
        # The command does not depend on the content; this input makes the step run again.
        inputs=(("folder", tree_digest(folder)),),
    )


def source_identity(table: FolderSource, destination: Path) -> SourceIdentity:
    """Return the commit of a git tree, with a digest if it is dirty; else a digest of the tree."""
    origin = str(Path(table.path).expanduser().absolute())
    commit = commit_of(destination)
    if not commit:
        return SourceIdentity(kind="folder", origin=origin, digest=tree_digest(destination))
    dirty = is_dirty(destination)
    return SourceIdentity(
        kind="folder",
        origin=origin,
        commit=commit,
        dirty=dirty,
        digest=tree_digest(destination) if dirty else "",
        submodules=submodule_commits(destination),
    )


def update_actions(table: FolderSource, place: FetchPlace) -> FetchPlan:
    """Return the actions that copy the folder again."""
    return fetch_actions(table, place)


def tree_digest(folder: Path) -> str:
    """Return a digest of names, sizes and modification times, without .git and file contents.

    A copy that preserves times (`cp -a`) has the same digest.
    """
    digest = hashlib.sha256()
    for name, status in _entries(folder, ""):
        kind = stat.S_IFMT(status.st_mode)
        line = f"{name}\0{kind}\0{status.st_mode & 0o111}\0"
        if not stat.S_ISDIR(kind):
            line += f"{status.st_size}\0{status.st_mtime_ns}\0"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return f"sha256 of names, sizes and times: {digest.hexdigest()}"


def _entries(folder: Path, below: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as iterator:
        entries = sorted(iterator, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name == ".git":
            continue
        name = f"{below}{entry.name}"
        yield name, entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(Path(entry.path), f"{name}/")


def _checked_folder(table: FolderSource, destination: Path, where: str) -> Path:
    folder = Path(table.path).expanduser().absolute()
    if not table.path or not folder.is_dir():
        raise UsageError(
            f"{where}.path is {table.path!r}, which is not a folder",
            hint="give the path of a source tree on this machine",
        )
    if destination.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{where}.path is {table.path!r}, which contains the destination of the copy",
            why=f"the copy is made in {destination}",
            hint="set TORCHYARD_HOME to a folder outside the source tree",
        )
    return folder
