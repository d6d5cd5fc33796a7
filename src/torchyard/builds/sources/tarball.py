"""An archive at a URL or path, with a checksum in the recipe."""

from __future__ import annotations

from pathlib import Path

from torchyard.builds.plan import Download
from torchyard.builds.recipe import TarballSource
from torchyard.builds.record import SourceIdentity
from torchyard.builds.sources.fetch_plan import (
    FetchPlace,
    FetchPlan,
    checked_address,
    checked_checksum,
    file_name_of,
    move_to_destination,
    nothing_to_update,
    recreate_part_folder,
    unpack_command,
    without_credentials,
)
from torchyard.errors import UsageError


def fetch_actions(table: TarballSource, place: FetchPlace) -> FetchPlan:
    """Return the actions: download, check, unpack."""
    url = checked_address(
        table.url,
        f"{place.where}.url",
        hint="put the login into ~/.netrc, which is used for downloads",
    )
    sha256 = checked_checksum(table.sha256, f"{place.where}.sha256")
    if table.strip < 0:
        raise UsageError(f"{place.where}.strip is {table.strip}", hint="give 0 or more")
    # The checksum is part of the name, so that a changed file at the same URL has another name.
    archive = place.downloads / "archives" / f"{sha256[:16]}-{file_name_of(url)}"
    return FetchPlan(
        kind="tarball",
        summary=f"archive {without_credentials(url)}",
        actions=(
            Download(url=url, path=str(archive), sha256=sha256),
            *recreate_part_folder(place.destination),
            unpack_command(archive, part=place.part, strip=table.strip),
            *move_to_destination(place, place.part / "tree"),
        ),
    )


def source_identity(table: TarballSource, destination: Path) -> SourceIdentity:  # noqa: ARG001 - interface of all sources
    """Return URL and checksum of the archive."""
    return SourceIdentity(
        kind="tarball",
        origin=without_credentials(table.url),
        sha256=checked_checksum(table.sha256, "source.tarball.sha256"),
    )


def update_actions(table: TarballSource, place: FetchPlace) -> FetchPlan:
    """Return a plan without actions: an archive with a checksum does not change."""
    checked_checksum(table.sha256, f"{place.where}.sha256")
    return nothing_to_update("tarball", "an archive with a checksum never changes")
