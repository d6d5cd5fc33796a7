"""A source distribution from the package index that pip is configured for."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.version import InvalidVersion, Version

from torchyard.builds.plan import SdistDownload
from torchyard.builds.recipe import SdistSource
from torchyard.builds.record import SourceIdentity
from torchyard.builds.sources.fetch_plan import (
    FetchPlace,
    FetchPlan,
    checked_checksum,
    files_of,
    keep_files,
    move_to_destination,
    nothing_to_update,
    on_this_machine,
    recreate_part_folder,
    sha256_of,
    unpack_command,
)
from torchyard.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def fetch_actions(table: SdistSource, place: FetchPlace) -> FetchPlan:
    """Return the actions: download, check, unpack; the archive is kept beside the source."""
    sha256 = _check(table, place.where)
    archive = place.part / "files" / f"{table.name}-{table.version}.sdist"
    return FetchPlan(
        kind="sdist",
        summary=f"sdist {table.name} {table.version}",
        actions=(
            *recreate_part_folder(place.destination),
            on_this_machine("mkdir", "--", str(archive.parent)),
            SdistDownload(name=table.name, version=table.version, path=str(archive), sha256=sha256),
            unpack_command(archive, part=place.part, strip=1),
            *keep_files(place.destination),
            *move_to_destination(place, place.part / "tree"),
        ),
    )


def source_identity(table: SdistSource, destination: Path) -> SourceIdentity:
    """Return name, version and checksum of the archive."""
    archive = files_of(destination) / f"{table.name}-{table.version}.sdist"
    return SourceIdentity(
        kind="sdist",
        origin=f"sdist:{table.name}",
        version=table.version,
        sha256=sha256_of(archive) if archive.is_file() else table.sha256,
    )


def update_actions(table: SdistSource, place: FetchPlace) -> FetchPlan:
    """Return a plan without actions: a release does not change."""
    _check(table, place.where)
    return nothing_to_update("sdist", f"{table.name} {table.version} is a release")


def _check(table: SdistSource, where: str) -> str:
    if not _NAME.fullmatch(table.name):
        raise UsageError(
            f"{where}.name is {table.name!r}, which is not a valid package name",
            hint="give the name of the package on the index",
        )
    try:
        Version(table.version)
    except InvalidVersion:
        raise UsageError(
            f"{where}.version is {table.version!r}, which is not a version",
            hint="give exactly one release, such as `1.2.0`",
        ) from None
    return checked_checksum(table.sha256, f"{where}.sha256") if table.sha256 else ""
