"""Checks: versions of tools fit the release, and the parts of a stack fit each other.

Tools are compilers, build programs and GPU toolkits. The parts of a stack are torch and its
companions, oneDNN and Arm Compute Library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from torchyard.builds.cmake_cache import as_truth
from torchyard.builds.compatibility import (
    allows,
    check_versions,
    debian_toolchain,
    fits_torch,
    known_releases,
    onednn_acl,
    parse_version,
    release_facts,
)
from torchyard.builds.doctor.context import Check, Patient, installed_versions
from torchyard.builds.doctor.finding import DoctorFinding
from torchyard.builds.environments.base_interpreter import find_interpreter
from torchyard.builds.recipe import EnvironmentTable, Recipe
from torchyard.errors import UsageError

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


def _examine_versions(patient: Patient) -> Iterator[DoctorFinding]:
    if not patient.recipes:
        yield from _general(patient)
    for recipe in patient.recipes:
        facts = patient.facts(recipe)
        if facts is None:
            continue
        found = found_versions(patient, recipe)
        yield from check_versions(
            facts,
            found,
            architecture=patient.architecture,
            variables=patient.settings(recipe),
        )
        for note in facts.notes:
            yield DoctorFinding(check=VERSIONS_CHECK.name, severity="notes", what=note)


def _general(patient: Patient) -> Iterator[DoctorFinding]:
    """Without a recipe nothing is going to be built, so nothing can block."""
    newest = known_releases("pytorch")[-1]
    recipe = Recipe(name="pytorch", environment=EnvironmentTable(use="current"))
    found = found_versions(patient, recipe)
    facts = release_facts("pytorch", newest)
    for finding in check_versions(facts, found, architecture=patient.architecture):
        yield replace(finding, severity="notes")


VERSIONS_CHECK = Check(
    name="versions",
    looks_at="versions of tools against the release's table",
    run=_examine_versions,
)


_ONEDNN_FOLDER: Final = "third_party/ideep/mkl-dnn"


def _examine_stack(patient: Patient) -> Iterator[DoctorFinding]:
    torch, whence = _torch_version(patient)
    for recipe in patient.recipes:
        facts = patient.facts(recipe)
        if facts is None:
            continue
        if facts.project == "pytorch":
            yield from _acl(patient, recipe)
        elif torch and parse_version(recipe.version) and known_releases(facts.project):
            yield from _companion(recipe, facts.project, torch, whence)
    for recipe in patient.recipes:
        if recipe.name == "onednn" and recipe.version:
            yield from _acl_fits(patient, recipe.version, "the recipe onednn")


def _torch_version(patient: Patient) -> tuple[str, str]:
    """Version of the torch that companions are built against, and where it comes from."""
    for recipe in patient.recipes:
        facts = patient.facts(recipe)
        if facts is not None and facts.project == "pytorch":
            return recipe.version, "the stack"
    base = patient.environment.base if patient.environment else ""
    if base and Path(base).exists():
        return installed_versions(base, ("torch",), environ=patient.variables).get(
            "torch", ""
        ), base
    return "", ""


def _companion(recipe: Recipe, project: str, torch: str, whence: str) -> Iterator[DoctorFinding]:
    if fits_torch(project, recipe.version, torch):
        return
    own = release_facts(project, recipe.version).companions.get("pytorch", "")
    right = release_facts("pytorch", torch).companions.get(project, "")
    yield DoctorFinding(
        check=STACK_CHECK.name,
        severity="warns",
        what=f"{project} {recipe.version} belongs to torch {own}, and {whence} has torch {torch}",
        why="each release is made for one torch; with another it may not compile, or lack"
        " operators at run time",
        mend=f"--set {recipe.name}/version={right}.0" if right else "",
    )


def _acl(patient: Patient, recipe: Recipe) -> Iterator[DoctorFinding]:
    if not as_truth(str(recipe.options.get("USE_MKLDNN_ACL", ""))):
        return
    facts = patient.facts(recipe)
    version, whence = (facts.onednn if facts else ""), f"pytorch {recipe.version}"
    usual = facts.acl if facts else ""
    if recipe.source.git is not None and _ONEDNN_FOLDER in recipe.source.git.overrides:
        version = recipe.source.git.overrides[_ONEDNN_FOLDER].removeprefix("v")
        whence, usual = f"the override of {_ONEDNN_FOLDER}", ""
    settings = patient.settings(recipe)
    if not settings.get("ACL_ROOT_DIR"):
        yield DoctorFinding(
            check=STACK_CHECK.name,
            severity="blocks",
            what="USE_MKLDNN_ACL is on and ACL_ROOT_DIR is not set",
            why="the Arm Compute Library is looked for there only",
            mend="build the variant cpu-arm, or set environment.variables.ACL_ROOT_DIR",
        )
    if version:
        root = settings.get("ACL_ROOT_DIR", "")
        yield from _acl_fits(patient, version, whence, root=root, usual=usual)


def _acl_fits(
    patient: Patient, onednn: str, whence: str, *, root: str = "", usual: str = ""
) -> Iterator[DoctorFinding]:
    known = onednn_acl(onednn)
    acl = next((r.version for r in patient.recipes if r.name == "arm-compute-library"), "")
    acl = acl or (_acl_version(Path(root)) if root else "")
    if known is None or not acl or allows(known.accepts, acl):
        return
    doubt = "" if known.confirmed else "; where exactly the limit of this oneDNN is was not read"
    yield DoctorFinding(
        check=STACK_CHECK.name,
        severity="blocks" if known.confirmed else "warns",
        what=f"oneDNN {onednn} ({whence}) does not take Arm Compute Library {acl}",
        why=f"it accepts {known.accepts}{doubt}. `Detected ACL version ..., but minimum required`"
        " would be the end",
        mend=f"--set arm-compute-library/version={usual or 'VERSION'}"
        + (", which PyTorch's own Arm wheels of this release carry" if usual else ""),
    )


def _acl_version(root: Path) -> str:
    """Version in the tree of a built Arm Compute Library; empty when it does not say."""
    for path in sorted(root.glob("**/arm_compute_version.embed"))[:1]:
        match = re.search(r"arm_compute_version=v?([\d.]+)", path.read_text(errors="replace"))
        if match:
            return match[1].rstrip(".")
    return ""


STACK_CHECK = Check(name="stack", looks_at="versions of a stack's parts", run=_examine_stack)
