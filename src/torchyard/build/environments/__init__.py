"""Environments: where a build runs and what it finds there.

Each kind is a sibling module; adding one means one module and one line in ENVIRONMENTS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.build.environments.base_variables import (
    base_variables,
    dropped_notes,
    passed_through,
)
from torchyard.build.environments.conda import Conda
from torchyard.build.environments.contract import (
    Environment,
    EnvironmentPlan,
    EnvironmentRequest,
)
from torchyard.build.environments.current import Current
from torchyard.build.environments.debian_root import DebianRoot
from torchyard.build.environments.venv import Venv
from torchyard.core.recipe import EnvironmentTable

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "EnvironmentPlan",
    "EnvironmentRequest",
    "base_variables",
    "dropped_notes",
    "passed_through",
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
    """How the environment is made and what later steps see of it; changes nothing.

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
