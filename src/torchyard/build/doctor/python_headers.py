"""Check: the interpreter is there and has the headers that extension modules need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torchyard.build.doctor.found_versions import interpreter
from torchyard.build.doctor.patient import Check, Patient
from torchyard.core.doctor_finding import DoctorFinding

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
            table = recipe.environment if patient.environment is None else patient.environment
            named = table.python or table.base
            yield DoctorFinding(
                check=CHECK.name,
                severity="blocks",
                what=f"there is no interpreter {named}",
                why="the recipe's environment is made of it",
                mend=f"apt-get install python{named}-venv python{named}-dev, or name another:"
                " --set environment.python=VERSION"
                if "/" not in named
                else "--set environment.python=VERSION",
            )
        elif python not in seen:
            seen.add(python)
            yield from _headers(patient, python)


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
