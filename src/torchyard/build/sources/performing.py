"""Do the actions of fetching that are no commands: downloads and the private apt configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchyard.build.sources.apt_private import write_apt_sources
from torchyard.build.sources.download import download
from torchyard.build.sources.package_index import download_sdist
from torchyard.core.build_plan import AptSources, Download, SdistDownload

__all__ = ["perform"]


def perform(
    action: Download | SdistDownload | AptSources, *, progress: Callable[[str], None]
) -> None:
    """Do one action, whole or not at all; `progress` gets a line for people now and then."""
    match action:
        case Download():
            download(action.url, Path(action.path), sha256=action.sha256.lower(), progress=progress)
        case SdistDownload():
            download_sdist(action, progress=progress)
        case AptSources():
            progress(f"apt configuration for {action.suite or 'the suites of this machine'}")
            write_apt_sources(action)
