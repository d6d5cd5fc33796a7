"""Run all checks of the doctor on a machine and, where given, a plan.

Adding a check means one `Check` in a sibling module and one entry in CHECKS.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from torchyard.builds.doctor import (
    capacity,
    gpu_toolkits,
    include_order,
    libraries,
    source_tree,
    toolchain,
    variables,
    versions,
)
from torchyard.builds.doctor.context import Check, DoctorContext
from torchyard.builds.doctor.finding import SEVERITIES, DoctorFinding
from torchyard.builds.plan import Plan
from torchyard.builds.recipe import EnvironmentTable, Recipe

__all__ = ["CHECKS", "Check", "DoctorContext", "can_build", "examine"]

CHECKS: Final[tuple[Check, ...]] = (
    versions.VERSIONS_CHECK,
    versions.STACK_CHECK,
    capacity.MEMORY_CHECK,
    capacity.DISK_CHECK,
    toolchain.PROGRAMS_CHECK,
    toolchain.COMPILERS_CHECK,
    toolchain.PYTHON_HEADERS_CHECK,
    source_tree.SUBMODULES_CHECK,
    source_tree.STALE_CACHE_CHECK,
    gpu_toolkits.NVIDIA_CHECK,
    gpu_toolkits.NVCC_HOST_CHECK,
    gpu_toolkits.ROCM_CHECK,
    libraries.BLAS_CHECK,
    libraries.LIBSTDCXX_CHECK,
    libraries.LIBRARY_PATH_CHECK,
    variables.VARIABLES_CHECK,
    include_order.INCLUDE_ORDER_CHECK,
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
    """Run the checks and return their findings, worst first.

    `recipes` defaults to those of the plan; without a plan or recipe, only the machine is checked.
    `environment` is the one that all components of a stack share. `root` contains /proc, /sys and
    the system folders; `tool_cache` is the cache file of program versions.
    """
    context = DoctorContext(
        root=root,
        environ=os.environ if environ is None else environ,
        plan=plan,
        recipes=tuple(recipes) or tuple(part.recipe for part in (plan.components if plan else ())),
        architecture=architecture or platform.machine(),
        given_environment=environment,
        tool_cache=tool_cache,
    )
    findings: dict[DoctorFinding, None] = {}
    for check in checks:
        try:
            # One by one: findings before an unreadable file still count.
            for finding in check.run(context):
                findings[finding] = None
        except OSError as error:
            findings[
                DoctorFinding(
                    check=check.name,
                    severity="notes",
                    what=f"{check.subject}: could not be checked",
                    why=str(error),
                )
            ] = None
    context.toolbox.save()
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def can_build(findings: Iterable[DoctorFinding]) -> bool:
    """Return whether no finding blocks the build."""
    return all(finding.severity != "blocks" for finding in findings)
