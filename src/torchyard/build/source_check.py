"""What was fetched is what was asked for: the locked source, and the release that the recipe says.

Looks at the fetched folder before anything is made from it.
"""

from __future__ import annotations

from pathlib import Path

from torchyard.build.coupling import parse_version
from torchyard.build.lock import Lock, check_fetched
from torchyard.build.sources import source_identity, used_kind
from torchyard.core.build_plan import Component
from torchyard.core.build_record import SourceIdentity
from torchyard.errors import StepFailed

__all__ = ["check_source", "upstream_version"]


def check_source(part: Component, lock: Lock | None) -> None:
    """Raise StepFailed when the source of a component is another one than was asked for."""
    if lock is None and used_kind(part.recipe.source, part.name) != "debian":
        return
    found = source_identity(part.recipe.source, Path(part.source))
    if lock is not None:
        check_fetched(part.name, found, lock)
    _check_release(part, found)


def upstream_version(debian_version: str) -> str:
    """The project's own version in a Debian one: 2.6.0 of `1:2.6.0+dfsg-7`."""
    without_epoch = debian_version.rpartition(":")[2]
    upstream = without_epoch.rpartition("-")[0] or without_epoch
    return upstream.partition("+")[0].partition("~")[0]


def _check_release(part: Component, found: SourceIdentity) -> None:
    """Debian has one version of a package in a suite, whatever number the recipe would stamp on it."""
    if found.kind != "debian" or not found.version:
        return
    said, real = parse_version(part.recipe.version), upstream_version(found.version)
    got = parse_version(real)
    if said is None or got is None or said == got:
        return
    raise StepFailed(
        f"{part.name}: Debian's source is release {real}, and the build was asked for {said}",
        why=f"the package is {found.origin} {found.version}",
        hint=f"say --set {part.name}/version={real}, or take another suite or another source",
    )
