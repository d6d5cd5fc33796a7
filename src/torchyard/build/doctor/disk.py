"""Check: room for the build and for the compilers' own files, and a disk programs may run from."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.build.doctor.patient import Check, Patient
from torchyard.core.doctor_finding import DoctorFinding

__all__ = ["CHECK"]

_GIB: Final = 1 << 30
_SCRATCH_GIB: Final = 1.0
_CUDA_SCRATCH_GIB: Final = 6.0
"""Our own margins for what compilers keep below TMPDIR: nvcc leaves an intermediate file for each
architecture there while it runs."""


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    folder = _existing(Path(patient.plan.folder if patient.plan else Path.cwd()))
    scratch = Path(patient.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the compilers' own rule
    needed_gib = sum(recipe.disk_gib for recipe in patient.recipes)
    scratch_gib = _CUDA_SCRATCH_GIB if patient.wants_cuda else _SCRATCH_GIB
    if not scratch.is_dir():
        yield DoctorFinding(
            check=CHECK.name,
            severity="warns",
            what=f"TMPDIR names {scratch}, which is no folder",
            why="compilers then choose a place of their own, often a small one",
            mend=f"mkdir -p {shlex.quote(str(scratch))}",
        )
        scratch = folder
    if patient.plan is not None and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks",
            what=f"programs may not run from {folder}",
            why="the disk is mounted noexec, and a build runs the programs it makes",
            mend="set TORCHYARD_HOME to a folder on another disk",
        )
    shared = folder.stat().st_dev == scratch.stat().st_dev
    free_gib = _free_gib(folder)
    total_gib = needed_gib + (scratch_gib if shared else 0)
    if patient.recipes and free_gib < total_gib:
        begun = patient.plan is not None and (Path(patient.plan.folder) / "steps").is_dir()
        yield DoctorFinding(
            check=CHECK.name,
            severity="warns" if begun else "blocks",
            what=f"{free_gib:.1f} GiB are free at {folder}, and the build needs {total_gib:.1f} GiB",
            why="source, objects and result together, as the recipes estimate them"
            + (" (part of it is there from an earlier start)" if begun else ""),
            mend="free some space, or set TORCHYARD_HOME to a folder on another disk",
        )
    if not shared and _free_gib(scratch) < scratch_gib:
        yield DoctorFinding(
            check=CHECK.name,
            severity="warns",
            what=f"{_free_gib(scratch):.1f} GiB are free at {scratch}, where compilers keep their"
            " own files",
            why=f"{scratch_gib:.0f} GiB are wanted there; `No space left on device` is the usual end",
            mend=f"export TMPDIR={shlex.quote(str(folder))}",
        )


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next((place for place in (path, *path.parents) if place.is_dir()), Path("/"))


def _free_gib(path: Path) -> float:
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize / _GIB


CHECK = Check(name="disk", looks_at="room for the build and for TMPDIR", run=_examine)
