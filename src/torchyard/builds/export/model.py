"""The interface of all export formats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from torchyard.builds.plan import Plan

__all__ = ["Export", "ExportFacts", "ExportedFile"]


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """One file of an export; the first one of an export is the one to read or to run."""

    name: str
    """Relative, with folders where the format wants them: `.devcontainer/Dockerfile`."""
    text: str
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportFacts:
    """What a plan does not say and an export needs."""

    home: str
    """Folder of all builds of the user, absolute: fetched sources and downloads are below it."""
    done: frozenset[str] = frozenset()
    """Names of the steps that are done already."""
    base_image: str = ""
    """Image to start from; empty means the one that fits the plan's environment."""
    conda_program: str = ""
    """Path of the conda program inside `base_image`; empty means that the export installs it."""
    image_folder: str = "/opt/torchyard"
    """Where builds are inside an image."""

    @property
    def sources(self) -> str:
        """Fetched sources, on this machine."""
        return str(PurePosixPath(self.home, "sources"))

    @property
    def downloads(self) -> str:
        """Archives and apt state, on this machine."""
        return str(PurePosixPath(self.home, "downloads"))


class Export(Protocol):
    """One format."""

    def __call__(self, plan: Plan, facts: ExportFacts, /) -> tuple[ExportedFile, ...]:
        """The plan in this format; the first file is the main one."""
        ...
