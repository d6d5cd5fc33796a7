"""The interface of all export formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from torchyard.builds.plan import Plan


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """One file of an export; the first one is the main file."""

    name: str
    """Relative path, such as `.devcontainer/Dockerfile`."""
    text: str
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportFacts:
    """Information that an export needs in addition to the plan."""

    home: str
    """Home directory of Torchyard (absolute), which contains fetched sources and downloads."""
    done: frozenset[str] = frozenset()
    """Names of the steps that are done."""
    base_image: str = ""
    """Base image; empty to choose one that matches the environment of the plan."""
    conda_program: str = ""
    """Path of the conda program inside `base_image`; empty to install it."""
    image_folder: str = "/opt/torchyard"
    """Folder of builds inside an image."""

    @property
    def sources(self) -> str:
        """Folder of fetched sources on this machine."""
        return str(PurePosixPath(self.home, "sources"))

    @property
    def downloads(self) -> str:
        """Folder of archives and apt state on this machine."""
        return str(PurePosixPath(self.home, "downloads"))


Export = Callable[[Plan, ExportFacts], tuple[ExportedFile, ...]]
"""An export format: returns the files of a plan, the main file first."""
