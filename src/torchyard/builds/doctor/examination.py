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
from torchyard.builds.doctor import capacity as memory
from torchyard.builds.doctor import gpu_toolkits as nvidia
from torchyard.builds.doctor import gpu_toolkits as rocm
from torchyard.builds.doctor import libraries as library_path
from torchyard.builds.doctor import libraries as libstdcxx
from torchyard.builds.doctor import source_tree as submodules
from torchyard.builds.doctor import toolchain as programs
from torchyard.builds.doctor import toolchain as python_headers
from torchyard.builds.doctor import versions as stack
from torchyard.builds.doctor.context import Check, Patient
from torchyard.builds.doctor.finding import SEVERITIES, DoctorFinding
from torchyard.builds.plan import Plan
from torchyard.builds.recipe import EnvironmentTable, Recipe

__all__ = ["CHECKS", "Check", "Patient", "can_build", "examine"]

CHECKS: Final[tuple[Check, ...]] = (
    versions.VERSIONS_CHECK,
    stack.STACK_CHECK,
    memory.MEMORY_CHECK,
    capacity.DISK_CHECK,
    programs.PROGRAMS_CHECK,
    toolchain.COMPILERS_CHECK,
    python_headers.PYTHON_HEADERS_CHECK,
    submodules.SUBMODULES_CHECK,
    source_tree.STALE_CACHE_CHECK,
    nvidia.NVIDIA_CHECK,
    gpu_toolkits.NVCC_HOST_CHECK,
    rocm.ROCM_CHECK,
    libraries.BLAS_CHECK,
    libstdcxx.LIBSTDCXX_CHECK,
    library_path.LIBRARY_PATH_CHECK,
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
