"""Check: the parts of a stack belong together: torch and its companions, oneDNN and ACL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.build.coupling import (
    allows,
    fits_torch,
    known_releases,
    onednn_acl,
    parse_version,
    release_facts,
)
from torchyard.build.doctor.patient import Check, Patient
from torchyard.build.tools import installed_versions
from torchyard.build.verify.cmake_cache import as_truth
from torchyard.core.doctor_finding import DoctorFinding
from torchyard.core.recipe import Recipe

__all__ = ["CHECK"]

_ONEDNN_FOLDER: Final = "third_party/ideep/mkl-dnn"


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
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
        check=CHECK.name,
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
            check=CHECK.name,
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
        check=CHECK.name,
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


CHECK = Check(name="stack", looks_at="versions of a stack's parts", run=_examine)
