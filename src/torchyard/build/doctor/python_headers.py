"""Check: the interpreter is there and has the headers that extension modules need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from torchyard.build.doctor.found_versions import interpreter
from torchyard.build.doctor.patient import Check, Patient
from torchyard.build.environments.programs import find_program
from torchyard.core.doctor_finding import DoctorFinding
from torchyard.core.recipe import Recipe

__all__ = ["CHECK"]

_ASKED = (
    "import sys, sysconfig;"
    "print('torchyard', '%d.%d' % sys.version_info[:2], sysconfig.get_paths()['include'])"
)


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    if patient.tools_come_later:
        return
    seen: set[str] = set()
    for recipe in patient.recipes:
        if recipe.builder != "python":
            continue
        python = interpreter(patient, recipe)
        if not python:
            yield from _no_interpreter(patient, recipe)
        elif python not in seen:
            seen.add(python)
            yield from _headers(patient, python)


def _no_interpreter(patient: Patient, recipe: Recipe) -> Iterator[DoctorFinding]:
    table = patient.environment or recipe.environment
    named = table.python or table.base or "on PATH"
    if "/" not in named and find_program("uv", patient.environ):
        # uv looks in more places, and can fetch one.
        return
    mend = "--set environment.python=VERSION"
    if re.fullmatch(r"3\.\d+", named):
        mend = f"apt-get install python{named}-venv python{named}-dev, or {mend}"
    yield DoctorFinding(
        check=CHECK.name,
        severity="blocks",
        what=f"there is no interpreter {named}",
        why="the environment is made of it",
        mend=mend,
    )


def _headers(patient: Patient, python: str) -> Iterator[DoctorFinding]:
    said = patient.ask((python, "-c", _ASKED), folder=Path("/"))
    lines = [line.split(" ", 2) for line in said.text.splitlines() if line.startswith("torchyard ")]
    if not lines:
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks",
            what=f"{python} does not run",
            why="it was asked for its header folder",
            detail=tuple(said.text.splitlines()[-3:]),
        )
        return
    _, version, folder = lines[-1]
    if not (Path(folder) / "Python.h").is_file():
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks",
            what=f"{python} has no headers",
            why=f"{folder}/Python.h is missing, and extension modules include it",
            mend=f"apt-get install python{version}-dev",
        )


CHECK = Check(name="python-headers", looks_at="headers of the interpreter", run=_examine)
