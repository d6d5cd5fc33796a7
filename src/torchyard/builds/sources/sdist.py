"""A source distribution from the package index that pip is configured for."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.version import InvalidVersion, Version

from torchyard.builds.plan import SdistDownload
from torchyard.builds.recipe import SdistSource
from torchyard.builds.sources.fetch_plan import (
    FetchPlan,
    SourceIdentity,
    arrive,
    checked_checksum,
    files_of,
    keep_files,
    nothing_to_update,
    on_this_machine,
    part_of,
    sha256_of,
    start_afresh,
    unpack_command,
)
from torchyard.errors import UsageError

__all__ = ["fetch_actions", "source_identity", "update_actions"]

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def fetch_actions(
    table: SdistSource,
    *,
    destination: Path,
    downloads: Path,  # noqa: ARG001 - as every source
    where: str,
) -> FetchPlan:
    """Download, check, unpack; the archive stays beside the source."""
    sha256 = _check(table, where)
    part = part_of(destination)
    archive = part / "files" / f"{table.name}-{table.version}.sdist"
    return FetchPlan(
        kind="sdist",
        summary=f"sdist {table.name} {table.version}",
        actions=(
            *start_afresh(destination),
            on_this_machine("mkdir", "--", str(archive.parent)),
            SdistDownload(name=table.name, version=table.version, path=str(archive), sha256=sha256),
            unpack_command(archive, part=part, strip=1),
            *keep_files(destination),
            *arrive(destination, part / "tree"),
        ),
    )


def source_identity(table: SdistSource, destination: Path) -> SourceIdentity:
    """Name, version, and the checksum of the archive that was unpacked."""
    archive = files_of(destination) / f"{table.name}-{table.version}.sdist"
    return SourceIdentity(
        kind="sdist",
        origin=f"sdist:{table.name}",
        version=table.version,
        sha256=sha256_of(archive) if archive.is_file() else table.sha256,
    )


def update_actions(
    table: SdistSource,
    *,
    destination: Path,  # noqa: ARG001 - as every source
    downloads: Path,  # noqa: ARG001 - as every source
    where: str,
) -> FetchPlan:
    """A release does not move."""
    _check(table, where)
    return nothing_to_update("sdist", f"{table.name} {table.version} is a release")


def _check(table: SdistSource, where: str) -> str:
    if not _NAME.fullmatch(table.name):
        raise UsageError(
            f"{where}.name is {table.name!r}, which no package is called",
            hint="give the package's name on the index",
        )
    try:
        Version(table.version)
    except InvalidVersion:
        raise UsageError(
            f"{where}.version is {table.version!r}, which is no version",
            hint="give exactly one release, such as `1.2.0`",
        ) from None
    return checked_checksum(table.sha256, f"{where}.sha256") if table.sha256 else ""
