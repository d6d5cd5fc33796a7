"""Do the actions of fetching that are no commands."""

from __future__ import annotations

from collections.abc import Callable

from torchyard.build.sources.apt_private import write_apt_sources
from torchyard.core.build_plan import AptSources, Download, SdistDownload

__all__ = ["perform"]


def perform(
    action: Download | SdistDownload | AptSources, *, progress: Callable[[str], None]
) -> None:
    """Do one action; `progress` gets a line for people now and then."""
    match action:
        case AptSources():
            progress(f"apt configuration for {action.suite or 'the own suites'}")
            write_apt_sources(action)
        case _:
            raise NotImplementedError
