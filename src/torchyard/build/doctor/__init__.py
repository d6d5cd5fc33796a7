"""The doctor: predicts before anything compiles whether a build can work, and says how to mend it.

Each check is a sibling module with a CHECK; adding one means one module and one line in CHECKS.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from torchyard.build.doctor import (
    blas,
    compilers,
    disk,
    include_order,
    library_path,
    libstdcxx,
    memory,
    nvcc_host,
    nvidia,
    programs,
    python_headers,
    rocm,
    stack,
    stale_cache,
    submodules,
    variables,
    versions,
)
from torchyard.build.doctor.patient import Check, Patient
from torchyard.core.build_plan import Plan
from torchyard.core.doctor_finding import SEVERITIES, DoctorFinding
from torchyard.core.recipe import EnvironmentTable, Recipe

__all__ = ["CHECKS", "Check", "Patient", "can_build", "examine"]

CHECKS: Final[tuple[Check, ...]] = (
    versions.CHECK,
    stack.CHECK,
    memory.CHECK,
    disk.CHECK,
    programs.CHECK,
    compilers.CHECK,
    python_headers.CHECK,
    submodules.CHECK,
    stale_cache.CHECK,
    nvidia.CHECK,
    nvcc_host.CHECK,
    rocm.CHECK,
    blas.CHECK,
    libstdcxx.CHECK,
    library_path.CHECK,
    variables.CHECK,
    include_order.CHECK,
)


def examine(
    plan: Plan | None = None,
    recipes: Sequence[Recipe] = (),
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    architecture: str = "",
    environment: EnvironmentTable | None = None,
    tool_cache: Path | None = None,
    checks: Iterable[Check] = CHECKS,
) -> tuple[DoctorFinding, ...]:
    """Everything the checks find, worst first; without a plan or recipe, the general health.

    The recipes are those of the plan where none are given. `environment` is the one that all parts
    of a stack share. `root` is where /proc, /sys and the system's folders are; `tool_cache` a file
    that remembers versions of programs.
    """
    patient = Patient(
        root=root,
        environ=os.environ if environ is None else environ,
        plan=plan,
        recipes=tuple(recipes) or tuple(part.recipe for part in (plan.components if plan else ())),
        architecture=architecture or platform.machine(),
        given_environment=environment,
        tool_cache=tool_cache,
    )
    found: dict[DoctorFinding, None] = {}
    for check in checks:
        try:
            # One by one: what was found before something could not be read still counts.
            for finding in check.run(patient):
                found[finding] = None
        except OSError as error:
            found[
                DoctorFinding(
                    check=check.name,
                    severity="notes",
                    what=f"{check.looks_at} could not be examined",
                    why=str(error),
                )
            ] = None
    patient.toolbox.save()
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def can_build(findings: Iterable[DoctorFinding]) -> bool:
    """Whether nothing was found that makes the build impossible."""
    return all(finding.severity != "blocks" for finding in findings)
