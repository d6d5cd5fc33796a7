"""An archive at a URL or path, whose checksum the recipe gives."""

from __future__ import annotations

from pathlib import Path

from torchyard.builds.plan import Download
from torchyard.builds.recipe import TarballSource
from torchyard.builds.sources.fetch_plan import (
    FetchPlan,
    SourceIdentity,
    arrive,
    checked_address,
    checked_checksum,
    file_name_of,
    nothing_to_update,
    part_of,
    start_afresh,
    unpack_command,
    without_credentials,
)
from torchyard.errors import UsageError

__all__ = ["fetch_actions", "source_identity", "update_actions"]


def fetch_actions(
    table: TarballSource, *, destination: Path, downloads: Path, where: str
) -> FetchPlan:
    """Download, check, unpack."""
    url = checked_address(
        table.url, f"{where}.url", mend="put the login into ~/.netrc, which is read for downloads"
    )
    sha256 = checked_checksum(table.sha256, f"{where}.sha256")
    if table.strip < 0:
        raise UsageError(f"{where}.strip is {table.strip}", hint="give 0 or more")
    # The checksum is in the name: another content of the same address is another file.
    archive = downloads / "archives" / f"{sha256[:16]}-{file_name_of(url)}"
    part = part_of(destination)
    return FetchPlan(
        kind="tarball",
        summary=f"archive {without_credentials(url)}",
        actions=(
            Download(url=url, path=str(archive), sha256=sha256),
            *start_afresh(destination),
            unpack_command(archive, part=part, strip=table.strip),
            *arrive(destination, part / "tree"),
        ),
    )


def source_identity(table: TarballSource, destination: Path) -> SourceIdentity:  # noqa: ARG001 - as every source
    """The checksum says it all: nothing else could have been unpacked."""
    return SourceIdentity(
        kind="tarball",
        origin=without_credentials(table.url),
        sha256=checked_checksum(table.sha256, "source.tarball.sha256"),
    )


def update_actions(
    table: TarballSource,
    *,
    destination: Path,  # noqa: ARG001 - as every source
    downloads: Path,  # noqa: ARG001 - as every source
    where: str,
) -> FetchPlan:
    """An archive with a checksum does not move."""
    checked_checksum(table.sha256, f"{where}.sha256")
    return nothing_to_update("tarball", "an archive with a checksum never changes")
