"""Which versions of compilers, tools and toolkits a build will meet.

Not simply what is on the machine: a virtual environment brings its own CMake, a conda environment
its own gcc, a root folder a whole Debian. What can't be known before the environment is made is
left out, because a doctor that cries without reason is not listened to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from torchyard.build.coupling import debian_toolchain
from torchyard.build.doctor.patient import Patient
from torchyard.build.environments.programs import find_interpreter
from torchyard.build.tools import installed_versions
from torchyard.core.recipe import Recipe
from torchyard.errors import UsageError

__all__ = ["cudnn_version", "environment_brings", "found_versions", "interpreter"]

_CONDA_TOOLS: Final = {
    "gcc_linux-64": "gcc",
    "gxx_linux-64": "gcc",
    "gcc_linux-aarch64": "gcc",
    "gxx_linux-aarch64": "gcc",
    "gxx": "gcc",
    "cxx-compiler": "gcc",
    "cuda-toolkit": "cuda",
    "cuda-nvcc": "cuda",
    "cuda-version": "cuda",
    "scikit-build-core": "scikit-build-core",
}
_PACKAGES: Final = ("setuptools", "scikit-build-core")


def found_versions(patient: Patient, recipe: Recipe) -> dict[str, str]:
    """Tool -> version, as the coupling table names the tools."""
    table = patient.environment or recipe.environment
    if table.use == "debian-root":
        return debian_toolchain(table.debian_root.suite)
    found = _on_the_machine(patient)
    if table.use == "conda" and not patient.environment_made:
        for tool, version in _conda_versions(table.conda.packages).items():
            found.pop(tool, None)
            if version:
                found[tool] = version
    elif not patient.environment_made:
        for tool in environment_brings(patient):
            found.pop(tool, None)
    found |= _of_the_interpreter(patient, recipe)
    if not patient.wants_cuda:
        found.pop("cuda", None)
        found.pop("cudnn", None)
    return {tool: version for tool, version in found.items() if version}


def _on_the_machine(patient: Patient) -> dict[str, str]:
    box = patient.toolbox
    found = {name: box.version(name) for name in ("cmake", "ninja", "glibc")}
    if patient.cxx is not None:
        found[patient.cxx.family] = patient.cxx.version
    if patient.nvcc is not None:
        found["cuda"] = patient.nvcc.version
        found["cudnn"] = cudnn_version(patient)
    return found


def environment_brings(patient: Patient) -> set[str]:
    """Programs that the environment will install, so that the machine's own do not matter."""
    if patient.environment is None or patient.environment.use in {"current", "debian-root"}:
        return set()
    if patient.environment.use == "conda":
        return set(_conda_versions(patient.environment.conda.packages))
    wanted = list(patient.environment.venv.packages)
    for recipe in patient.recipes:
        facts = patient.facts(recipe)
        wanted += recipe.environment.venv.packages
        wanted += facts.build_requires if facts and recipe.builder == "python" else ()
    names: set[str] = set()
    for text in wanted:
        try:
            names.add(Requirement(text).name.lower())
        except InvalidRequirement:
            continue
    return names


def _conda_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Tools that conda brings -> the version that is pinned, or nothing where a range is."""
    found: dict[str, str] = {}
    for text in packages:
        match = re.fullmatch(r"(?:.*::)?([\w.-]+)\s*(?:==?\s*([\d.]+)\*?)?.*", text.strip())
        if match is None:
            continue
        name, version = match[1], match[2] or ""
        label = re.match(r".*/label/cuda-([\d.]+)::", text)
        if label and not version:
            version = label[1]
        found[_CONDA_TOOLS.get(name, name)] = version.rstrip(".")
    return found


def interpreter(patient: Patient, recipe: Recipe) -> str:
    """The interpreter whose headers and packages can be looked at now; empty when there is none."""
    component = patient.component(recipe)
    if component is not None and component.python and Path(component.python).exists():
        return component.python
    table = patient.environment or recipe.environment
    if table.use == "current" and not table.python:
        tool = patient.toolbox.find("python")
        return tool.path if tool else ""
    try:
        found = find_interpreter(table.python or table.base, patient.environ, where="the doctor")
    except UsageError:
        return ""
    return found.path if found.version else ""


def _of_the_interpreter(patient: Patient, recipe: Recipe) -> dict[str, str]:
    if patient.environment_kind == "conda" and not patient.environment_made:
        return {}
    python = interpreter(patient, recipe)
    if not python:
        return {}
    tool = patient.toolbox.find(python)
    found = {"python": tool.version} if tool else {}
    if patient.environment_kind == "current" or patient.environment_made:
        found |= installed_versions(python, _PACKAGES, environ=patient.variables)
    return found


def cudnn_version(patient: Patient) -> str:
    """Version of the cuDNN whose header the build would find; empty when none is found."""
    names = ("CUDNN_ROOT", "CUDNN_INCLUDE_DIR", "CUDA_HOME", "CONDA_PREFIX")
    roots = [Path(patient.variables[name]) for name in names if patient.variables.get(name)]
    system = [patient.system("usr"), patient.system("usr/local/cuda")]
    triplet = f"{patient.architecture}-linux-gnu"
    for folder in (*roots, *system):
        for place in ("include", ".", f"include/{triplet}"):
            header = folder / place / "cudnn_version.h"
            try:
                text = header.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parts = [
                match[1]
                for name in ("MAJOR", "MINOR", "PATCHLEVEL")
                if (match := re.search(rf"#define CUDNN_{name}\s+(\d+)", text))
            ]
            return ".".join(parts)
    return ""
