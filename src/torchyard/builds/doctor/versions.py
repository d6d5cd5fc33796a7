"""Checks: versions of tools match the release, and components of a stack match each other.

Tools are compilers, build programs and GPU toolkits. The components of a stack are torch and its
companions, oneDNN and Arm Compute Library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from torchyard.builds.cmake_cache import cmake_bool
from torchyard.builds.compatibility import (
    check_versions,
    debian_toolchain,
    known_releases,
    onednn_acl,
    parse_version,
    release_facts,
    supports_torch,
    version_in_range,
)
from torchyard.builds.doctor.context import DoctorContext, installed_versions
from torchyard.builds.doctor.finding import DoctorFinding, blocker, note, warning
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


def found_versions(context: DoctorContext, recipe: Recipe) -> dict[str, str]:
    """Return tool -> version, with the tool names of the coupling table."""
    table = context.environment or recipe.environment
    if table.use == "debian-root":
        return debian_toolchain(table.debian_root.suite)
    versions = _machine_versions(context)
    if table.use == "conda" and not context.environment_made:
        for tool, version in _conda_versions(table.conda.packages).items():
            versions.pop(tool, None)
            if version:
                versions[tool] = version
    elif not context.environment_made:
        for tool in environment_brings(context):
            versions.pop(tool, None)
    versions |= _interpreter_versions(context, recipe)
    if not context.wants_cuda:
        versions.pop("cuda", None)
        versions.pop("cudnn", None)
    return {tool: version for tool, version in versions.items() if version}


def _machine_versions(context: DoctorContext) -> dict[str, str]:
    box = context.toolbox
    versions = {name: box.version(name) for name in ("cmake", "ninja", "glibc")}
    if context.cxx is not None:
        versions[context.cxx.family] = context.cxx.version
    if context.nvcc is not None:
        versions["cuda"] = context.nvcc.version
        versions["cudnn"] = cudnn_version(context)
    return versions


def environment_brings(context: DoctorContext) -> set[str]:
    """Return the programs that the environment installs, which replace those of the machine."""
    if context.environment is None or context.environment.use in {"current", "debian-root"}:
        return set()
    if context.environment.use == "conda":
        return set(_conda_versions(context.environment.conda.packages))
    requirements = list(context.environment.venv.packages)
    for recipe in context.recipes:
        facts = context.facts(recipe)
        requirements += recipe.environment.venv.packages
        requirements += facts.build_requires if facts and recipe.builder == "python" else ()
    names: set[str] = set()
    for text in requirements:
        try:
            names.add(Requirement(text).name.lower())
        except InvalidRequirement:
            continue
    return names


def _conda_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return tool -> pinned version for the packages of conda; empty for a range."""
    versions: dict[str, str] = {}
    for text in packages:
        match = re.fullmatch(r"(?:.*::)?([\w.-]+)\s*(?:==?\s*([\d.]+)\*?)?.*", text.strip())
        if match is None:
            continue
        name, version = match[1], match[2] or ""
        label = re.match(r".*/label/cuda-([\d.]+)::", text)
        if label and not version:
            version = label[1]
        versions[_CONDA_TOOLS.get(name, name)] = version.rstrip(".")
    return versions


def interpreter(context: DoctorContext, recipe: Recipe) -> str:
    """Return the interpreter of a build, if it exists already; otherwise an empty text."""
    component = context.component(recipe)
    if component is not None and component.python and Path(component.python).exists():
        return component.python
    table = context.environment or recipe.environment
    if table.use == "current" and not table.python:
        tool = context.toolbox.find("python")
        return tool.path if tool else ""
    try:
        python = find_interpreter(table.python or table.base, context.environ, where="the doctor")
    except UsageError:
        return ""
    return python.path if python.version else ""


def _interpreter_versions(context: DoctorContext, recipe: Recipe) -> dict[str, str]:
    if context.environment_kind == "conda" and not context.environment_made:
        return {}
    python = interpreter(context, recipe)
    if not python:
        return {}
    tool = context.toolbox.find(python)
    versions = {"python": tool.version} if tool else {}
    if context.environment_kind == "current" or context.environment_made:
        versions |= installed_versions(python, _PACKAGES, environ=context.variables)
    return versions


def cudnn_version(context: DoctorContext) -> str:
    """Return the version of the cuDNN header that the build would find; empty if none."""
    names = ("CUDNN_ROOT", "CUDNN_INCLUDE_DIR", "CUDA_HOME", "CONDA_PREFIX")
    roots = [Path(context.variables[name]) for name in names if context.variables.get(name)]
    system = [context.system("usr"), context.system("usr/local/cuda")]
    triplet = f"{context.architecture}-linux-gnu"
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


def examine_versions(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check versions of tools against those of the release."""
    if not context.recipes:
        yield from _without_recipe(context)
    for recipe in context.recipes:
        facts = context.facts(recipe)
        if facts is None:
            continue
        versions = found_versions(context, recipe)
        yield from check_versions(
            facts,
            versions,
            architecture=context.architecture,
            variables=context.settings(recipe),
        )
        for text in facts.notes:
            yield note(text)


def _without_recipe(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check against the newest release. Nothing is built, so all findings are notes."""
    newest = known_releases("pytorch")[-1]
    recipe = Recipe(name="pytorch", environment=EnvironmentTable(use="current"))
    versions = found_versions(context, recipe)
    facts = release_facts("pytorch", newest)
    for finding in check_versions(facts, versions, architecture=context.architecture):
        yield replace(finding, severity="notes")


_ONEDNN_FOLDER: Final = "third_party/ideep/mkl-dnn"


def examine_stack(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check versions of the components of a stack."""
    torch, origin = _torch_version(context)
    for recipe in context.recipes:
        facts = context.facts(recipe)
        if facts is None:
            continue
        if facts.project == "pytorch":
            yield from _acl(context, recipe)
        elif torch and parse_version(recipe.version) and known_releases(facts.project):
            yield from _companion(recipe, facts.project, torch, origin)
    for recipe in context.recipes:
        if recipe.name == "onednn" and recipe.version:
            yield from _acl_fits(context, recipe.version, "the recipe onednn")


def _torch_version(context: DoctorContext) -> tuple[str, str]:
    """Return the version of torch that companions are built against, and where it comes from."""
    for recipe, _ in context.pytorch_recipes():
        return recipe.version, "the stack"
    base = context.environment.base if context.environment else ""
    if base and Path(base).exists():
        return installed_versions(base, ("torch",), environ=context.variables).get(
            "torch", ""
        ), base
    return "", ""


def _companion(recipe: Recipe, project: str, torch: str, origin: str) -> Iterator[DoctorFinding]:
    if supports_torch(project, recipe.version, torch):
        return
    own = release_facts(project, recipe.version).companions.get("pytorch", "")
    right = release_facts("pytorch", torch).companions.get(project, "")
    yield warning(
        f"{project} {recipe.version} belongs to torch {own}, but {origin} has torch {torch}",
        why="each release supports one version of torch; with another it may not compile, or may lack"
        " operators at run time",
        fix=f"--set {recipe.name}/version={right}.0" if right else "",
    )


def _acl(context: DoctorContext, recipe: Recipe) -> Iterator[DoctorFinding]:
    if not cmake_bool(str(recipe.options.get("USE_MKLDNN_ACL", ""))):
        return
    facts = context.facts(recipe)
    version, origin = (facts.onednn if facts else ""), f"pytorch {recipe.version}"
    usual = facts.acl if facts else ""
    if recipe.source.git is not None and _ONEDNN_FOLDER in recipe.source.git.overrides:
        version = recipe.source.git.overrides[_ONEDNN_FOLDER].removeprefix("v")
        origin, usual = f"the override of {_ONEDNN_FOLDER}", ""
    settings = context.settings(recipe)
    if not settings.get("ACL_ROOT_DIR"):
        yield blocker(
            "USE_MKLDNN_ACL is on and ACL_ROOT_DIR is not set",
            why="Arm Compute Library is searched for only there",
            fix="build the variant cpu-arm, or set environment.variables.ACL_ROOT_DIR",
        )
    if version:
        root = settings.get("ACL_ROOT_DIR", "")
        yield from _acl_fits(context, version, origin, root=root, usual=usual)


def _acl_fits(
    context: DoctorContext, onednn: str, origin: str, *, root: str = "", usual: str = ""
) -> Iterator[DoctorFinding]:
    limits = onednn_acl(onednn)
    acl = next((r.version for r in context.recipes if r.name == "arm-compute-library"), "")
    acl = acl or (_acl_version(Path(root)) if root else "")
    if limits is None or not acl or version_in_range(limits.accepts, acl):
        return
    doubt = "" if limits.confirmed else "; the exact limit of this oneDNN is not confirmed"
    yield DoctorFinding(
        severity="blocks" if limits.confirmed else "warns",
        what=f"oneDNN {onednn} ({origin}) does not support Arm Compute Library {acl}",
        why=f"it accepts {limits.accepts}{doubt}. CMake would fail with"
        " `Detected ACL version ..., but minimum required`",
        fix=f"--set arm-compute-library/version={usual or 'VERSION'}"
        + (", as in the official Arm wheels of this release" if usual else ""),
    )


def _acl_version(root: Path) -> str:
    """Return the version of a built Arm Compute Library; empty if unknown."""
    for path in sorted(root.glob("**/arm_compute_version.embed"))[:1]:
        match = re.search(r"arm_compute_version=v?([\d.]+)", path.read_text(errors="replace"))
        if match:
            return match[1].rstrip(".")
    return ""
