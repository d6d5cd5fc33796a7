"""What every check of a finished component looks at and gives back.

A check is a module with a function that takes a Subject and returns a Checked. Checks do not know
each other; what several need (the folders of the environment, the imported module) is in Subject.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torchyard.build.verify.target_python import RunInTarget, TargetPython
from torchyard.core.build_plan import Component
from torchyard.core.build_record import (
    CheckFinding,
    ImportedModule,
    LinkedLibrary,
    OptionVerdict,
    SmokeResult,
)

__all__ = ["Check", "Checked", "EnvironmentFolders", "ModuleFacts", "Subject"]


@dataclass(frozen=True, kw_only=True)
class EnvironmentFolders:
    """Where the target's interpreter keeps its things."""

    prefix: str = ""
    """Of the environment; the same as the system's where there is no environment."""
    site: tuple[str, ...] = ()
    """Folders that packages are installed to."""


@dataclass(frozen=True, kw_only=True)
class ModuleFacts:
    """What importing the module showed."""

    name: str
    file: str = ""
    version: str = ""
    config: dict[str, str] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()
    """Shared libraries in the process, by their real paths."""
    failure: str = ""
    """The last lines, when it did not import."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A finished component, as the checks see it."""

    component: Component
    root: str
    run: RunInTarget
    target: TargetPython | None
    """None for a component without an interpreter."""
    environment: EnvironmentFolders
    module: ModuleFacts | None
    """None when the recipe names no module."""
    smoke_limit_s: float

    @property
    def editable(self) -> bool:
        """The tree itself is what gets imported, on purpose."""
        recipe = self.component.recipe
        return recipe.builder == "python" and recipe.python.install == "editable"

    def outside(self, path: str) -> Path:
        """Where a path of the target is for this process.

        Folders that a root shares with this machine have one path for both, and are empty below
        the root folder while nothing is mounted there.
        """
        if self.root:
            below = Path(self.root) / path.lstrip("/")
            if below.exists():
                return below
        return Path(path)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What one check found."""

    findings: tuple[CheckFinding, ...] = ()
    imported: ImportedModule | None = None
    options: tuple[OptionVerdict, ...] = ()
    config: dict[str, str] = field(default_factory=dict)
    libraries: tuple[LinkedLibrary, ...] = ()
    loaded: tuple[str, ...] = ()
    smoke: tuple[SmokeResult, ...] = ()


class Check(Protocol):
    """One kind of check."""

    def __call__(self, subject: Subject, /) -> Checked:
        """Look, and say what is not as it should be; raises only for our own mistakes."""
