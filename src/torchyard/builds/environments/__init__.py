"""Environments: the interpreter, packages and variables that a build runs with.

Each kind is a module (venv, conda, debian_root, current); adding one means one module and one entry
in ENVIRONMENTS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.builds.environments.conda import Conda
from torchyard.builds.environments.current import Current
from torchyard.builds.environments.debian_root import DebianRoot
from torchyard.builds.environments.model import (
    Environment,
    EnvironmentPlan,
    EnvironmentRequest,
    base_variables,
    dropped_notes,
    inherited_variables,
)
from torchyard.builds.environments.venv import Venv
from torchyard.builds.recipe import EnvironmentTable

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "EnvironmentPlan",
    "EnvironmentRequest",
    "base_variables",
    "dropped_notes",
    "inherited_variables",
    "plan_environment",
]

ENVIRONMENTS: Final[Mapping[str, Environment]] = {
    environment.kind: environment for environment in (Venv(), Conda(), DebianRoot(), Current())
}


def plan_environment(
    table: EnvironmentTable,
    *,
    folder: Path,
    packages: tuple[str, ...],
    where: str,
    environ: Mapping[str, str] | None = None,
) -> EnvironmentPlan:
    """Return the plan of the environment; changes nothing.

    `packages` are the pip requirements of all components; `where` names the table in errors.
    """
    request = EnvironmentRequest(
        table=table,
        folder=folder.absolute(),
        packages=packages,
        where=where,
        environ=os.environ if environ is None else environ,
    )
    plan = ENVIRONMENTS[table.use].plan(request)
    return replace(plan, notes=(*plan.notes, *dropped_notes(request.environ)))
