"""Run all checks of the doctor on a machine and, where given, a plan.

Adding a check means one function in a sibling module and one entry in CHECKS.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.builds.doctor import (
    capacity,
    configuration,
    gpu_toolkits,
    search_paths,
    toolchain,
)
from torchyard.builds.doctor.context import Check, DoctorContext
from torchyard.builds.doctor.finding import SEVERITIES, DoctorFinding, note
from torchyard.builds.plan import Plan
from torchyard.builds.recipe import EnvironmentTable, Recipe

CHECKS: Final[tuple[Check, ...]] = (
    Check("versions", "versions of tools against those of the release", toolchain.examine_versions),
    Check("stack", "versions of the components of a stack", toolchain.examine_stack),
    Check("memory", "memory for each compile", capacity.examine_memory),
    Check("disk", "disk space for the build and for TMPDIR", capacity.examine_disk),
    Check("programs", "programs that fetch and build", toolchain.examine_programs),
    Check("architecture", "processor architecture and MPI", toolchain.examine_architecture),
    Check("compilers", "compilers, by compiling a program", toolchain.examine_compilers),
    Check("python-headers", "headers of the interpreter", toolchain.examine_python_headers),
    Check("source-folder", "submodules of a source folder", configuration.examine_submodules),
    Check("nvidia", "CUDA toolkit, driver and GPUs", gpu_toolkits.examine_nvidia),
    Check("nvcc-host", "nvcc and its host compiler", gpu_toolkits.examine_nvcc_host),
    Check("rocm", "ROCm and its compiler", gpu_toolkits.examine_rocm),
    Check("blas", "the requested BLAS", search_paths.examine_blas),
    Check("libstdc++", "the libstdc++ that will be loaded", search_paths.examine_libstdcxx),
    Check("library-path", "LD_LIBRARY_PATH and LD_PRELOAD", search_paths.examine_library_path),
    Check("variables", "options and variables without effect", configuration.examine_variables),
    Check("include-order", "which copy of a header is used", search_paths.examine_include_order),
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
                findings[replace(finding, check=check.name)] = None
        except OSError as error:
            failure = note(f"{check.subject}: could not be checked", why=str(error))
            findings[replace(failure, check=check.name)] = None
    context.toolbox.save()
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def can_build(findings: Iterable[DoctorFinding]) -> bool:
    """Return whether no finding blocks the build."""
    return all(finding.severity != "blocks" for finding in findings)
