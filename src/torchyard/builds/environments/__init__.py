"""Environments: the interpreter, packages and variables that a build runs with.

Each kind is a module (venv, conda, debian_root, current); adding one means one module and one entry
in ENVIRONMENTS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.builds.environments.conda import plan_conda
from torchyard.builds.environments.debian_root import plan_debian_root
from torchyard.builds.environments.model import EnvironmentPlan, EnvironmentRequest, dropped_notes
from torchyard.builds.environments.venv import plan_current, plan_venv
from torchyard.builds.recipe import EnvironmentKind, EnvironmentTable

ENVIRONMENTS: Final[Mapping[EnvironmentKind, Callable[[EnvironmentRequest], EnvironmentPlan]]] = {
    "venv": plan_venv,
    "conda": plan_conda,
    "debian-root": plan_debian_root,
    "current": plan_current,
}
"""Functions that examine the machine and return the plan of an environment."""


def plan_environment(
    table: EnvironmentTable,
    *,
    folder: Path,
    packages: tuple[str, ...],
    where: str,
    environ: Mapping[str, str] | None = None,
    python_range: str = "",
) -> EnvironmentPlan:
    """Return the plan of the environment; changes nothing.

    `packages` are the pip requirements of all components; `where` names the table in errors.
    `python_range` are the versions of Python from which an installer may choose.
    """
    request = EnvironmentRequest(
        table=table,
        folder=folder.absolute(),
        packages=packages,
        where=where,
        environ=os.environ if environ is None else environ,
        python_range=python_range,
    )
    plan = ENVIRONMENTS[table.use](request)
    return replace(plan, notes=(*plan.notes, *dropped_notes(request.environ)))
