"""What every kind of environment gets and gives. Knows no kind by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchyard.core.build_plan import Step, Variables
from torchyard.core.recipe import EnvironmentKind, EnvironmentTable

__all__ = ["COMPONENT", "Environment", "EnvironmentPlan", "EnvironmentRequest"]

COMPONENT = "environment"
"""Name under which an environment's steps, logs and records are kept."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest:
    """What the recipe and the machine say about the environment."""

    table: EnvironmentTable
    folder: Path
    """The plan's folder, absolute."""
    packages: tuple[str, ...]
    """Requirements of all components for the package installer of Python."""
    where: str
    """What to call the table in an error, such as `pytorch: environment`."""
    environ: Mapping[str, str]
    """The variables Torchyard itself was started with."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentPlan:
    """How an environment is made, and what every later step sees of it."""

    kind: EnvironmentKind
    python: str
    """Path of the interpreter, inside the root where there is one; empty where none is needed."""
    root: str = ""
    """Root folder that later steps run in; empty means this machine."""
    steps: tuple[Step, ...] = ()
    variables: Variables = ()
    """The whole environment of later steps, apart from what is passed through."""
    installer: tuple[str, ...] = ()
    """Command that installs the requirements put behind it (`-r FILE`, `NAME`)."""
    missing: tuple[str, ...] = ()
    """Programs and rights the steps need and this machine has not: the plan can be shown, not run."""
    notes: tuple[str, ...] = ()
    """What was chosen for the user and why."""

    @property
    def last_step(self) -> tuple[str, ...]:
        """What a step that uses the environment needs: its last step, or nothing."""
        return tuple(step.name for step in self.steps[-1:])


class Environment(Protocol):
    """One kind of environment."""

    kind: EnvironmentKind

    def plan(self, request: EnvironmentRequest) -> EnvironmentPlan:
        """How to make it; looks at the machine and changes nothing."""
        ...
