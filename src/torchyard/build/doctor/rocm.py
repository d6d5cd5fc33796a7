"""Check: ROCm is there, and what its users must know."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from torchyard.build.coupling import rocm_notes
from torchyard.build.doctor.patient import Check, Patient
from torchyard.core.doctor_finding import DoctorFinding
from torchyard.core.recipe import Recipe

__all__ = ["CHECK"]

_HIPIFY = "build_amd.py"


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    if not patient.wants_rocm or patient.environment_kind == "debian-root":
        return
    if patient.hipcc is None:
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks",
            what="ROCm's compiler hipcc is not there",
            why=f"the build is for ROCm (USE_ROCM), and neither {patient.rocm_path} nor PATH has it",
            mend="install ROCm with its development packages, and set ROCM_PATH",
        )
        return
    if not Path(patient.rocm_path).is_dir():
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks",
            what=f"{patient.rocm_path} is no folder",
            why="CMake looks for hip-config.cmake and rocblas below it",
            mend=f"export ROCM_PATH={shlex.quote(str(Path(patient.hipcc.path).resolve().parent.parent))}",
        )
    for recipe in patient.recipes:
        facts = patient.facts(recipe)
        if facts is not None and facts.project == "pytorch":
            yield from _recipe(patient, recipe)
    for note in rocm_notes(patient.hipcc.version):
        yield DoctorFinding(check=CHECK.name, severity="notes", what=note)


def _recipe(patient: Patient, recipe: Recipe) -> Iterator[DoctorFinding]:
    settings = patient.settings(recipe)
    if not any(_HIPIFY in word for command in recipe.prepare for word in command.run):
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks",
            what="the recipe does not turn the CUDA sources into HIP",
            why=f"tools/amd_build/{_HIPIFY} is no part of PyTorch's own build",
            mend="build the variant rocm, or add the command to `prepare`",
        )
    if not settings.get("PYTORCH_ROCM_ARCH"):
        yield DoctorFinding(
            check=CHECK.name,
            severity="warns",
            what="PYTORCH_ROCM_ARCH is not set",
            why="PyTorch then builds for a long list of cards, which takes hours more",
            mend="--set PYTORCH_ROCM_ARCH=gfx90a (rocminfo names the card)",
        )
    if settings.get("HIP_PLATFORM", "amd") != "amd":
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks",
            what=f"HIP_PLATFORM is {settings['HIP_PLATFORM']}",
            why="hipcc would call nvcc",
            mend="export HIP_PLATFORM=amd",
        )


CHECK = Check(name="rocm", looks_at="ROCm and its compiler", run=_examine)
