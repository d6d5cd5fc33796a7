"""Checks: disk space and memory for the build.

Disk space covers the build and the temporary files of compilers; memory covers its compile jobs.
The disk must also allow programs to be executed from it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.builds.doctor.context import Check, Patient
from torchyard.builds.doctor.finding import DoctorFinding
from torchyard.builds.recipe import Recipe
from torchyard.machine.limits import read_limits

_GIB: Final = 1 << 30
_SCRATCH_GIB: Final = 1.0
_CUDA_SCRATCH_GIB: Final = 6.0
"""Our own margins for what compilers keep below TMPDIR: nvcc leaves an intermediate file for each
architecture there while it runs."""


def _examine_disk(patient: Patient) -> Iterator[DoctorFinding]:
    folder = _existing(Path(patient.plan.folder if patient.plan else Path.cwd()))
    scratch = Path(patient.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the compilers' own rule
    needed_gib = sum(recipe.disk_gib for recipe in patient.recipes)
    scratch_gib = _CUDA_SCRATCH_GIB if patient.wants_cuda else _SCRATCH_GIB
    if not scratch.is_dir():
        yield DoctorFinding(
            check=DISK_CHECK.name,
            severity="warns",
            what=f"TMPDIR names {scratch}, which is no folder",
            why="compilers then choose a place of their own, often a small one",
            mend=f"mkdir -p {shlex.quote(str(scratch))}",
        )
        scratch = folder
    if patient.plan is not None and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        yield DoctorFinding(
            check=DISK_CHECK.name,
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
            check=DISK_CHECK.name,
            severity="warns" if begun else "blocks",
            what=f"{free_gib:.1f} GiB are free at {folder}, and the build needs {total_gib:.1f} GiB",
            why="source, objects and result together, as the recipes estimate them"
            + (" (part of it is there from an earlier start)" if begun else ""),
            mend="free some space, or set TORCHYARD_HOME to a folder on another disk",
        )
    if not shared and _free_gib(scratch) < scratch_gib:
        yield DoctorFinding(
            check=DISK_CHECK.name,
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


DISK_CHECK = Check(name="disk", looks_at="room for the build and for TMPDIR", run=_examine_disk)


_GPU_WORDS = ("flash", "cuda", "hip", "attention")
_ORDINARY_MIB = 2400
"""Largest CPU compile of PyTorch 2.6 seen on aarch64 with gcc 14."""


def _examine_memory(patient: Patient) -> Iterator[DoctorFinding]:
    limits = read_limits(patient.root)
    if not limits.total_mib:
        yield DoctorFinding(
            check=MEMORY_CHECK.name,
            severity="notes",
            what="the memory of this machine can't be read",
        )
        return
    with_swap_mib = limits.total_mib + _swap_mib(patient)
    asked = [_heaviest(patient, recipe) for recipe in patient.recipes] or [("", _ORDINARY_MIB)]
    name, needed_mib = max(asked, key=lambda item: item[1])
    subject = f"the heaviest compile ({name})" if name else "a large compile of PyTorch"
    if needed_mib > with_swap_mib:
        yield DoctorFinding(
            check=MEMORY_CHECK.name,
            severity="blocks" if patient.recipes else "warns",
            what=f"{subject} needs {_gib(needed_mib)}, and there are only {_gib(with_swap_mib)}",
            why=f"memory and swap {limits.memory_why} together; the kernel would kill the compiler",
            mend="add swap: fallocate -l 8G /swapfile && chmod 600 /swapfile && mkswap /swapfile"
            " && swapon /swapfile",
        )
    elif needed_mib > limits.available_mib:
        yield DoctorFinding(
            check=MEMORY_CHECK.name,
            severity="warns",
            what=f"{subject} needs {_gib(needed_mib)}, and {_gib(limits.available_mib)} are free now",
            why=f"{_gib(limits.total_mib)} {limits.memory_why}, the rest is in use; it would swap",
            mend="end other programs first: ps -eo rss,pid,comm --sort=-rss | head",
        )
    jobs = patient.plan.jobs if patient.plan else 0
    for recipe in patient.recipes:
        together_mib = jobs * recipe.job_memory_mib
        if jobs > 1 and together_mib > with_swap_mib:
            fewer = max(with_swap_mib // recipe.job_memory_mib, 1)
            yield DoctorFinding(
                check=MEMORY_CHECK.name,
                severity="warns",
                what=f"{jobs} jobs of {recipe.name} want {_gib(together_mib)} together",
                why=f"an ordinary compile takes {recipe.job_memory_mib} MiB, and there are"
                f" {_gib(with_swap_mib)}",
                mend=f"--jobs {fewer}, or --jobs auto",
            )


def _heaviest(patient: Patient, recipe: Recipe) -> tuple[str, int]:
    """Name and MiB of a recipe's largest compile; those for GPUs only where GPUs are meant."""
    gpu = patient.wants_cuda or patient.wants_rocm
    heavy = {
        pattern: mib
        for pattern, mib in recipe.heavy.items()
        if gpu or not any(word in pattern.lower() for word in _GPU_WORDS)
    }
    ordinary = {recipe.name: recipe.job_memory_mib}
    return max((heavy | ordinary).items(), key=lambda item: item[1])


def _swap_mib(patient: Patient) -> int:
    try:
        text = patient.system("proc/meminfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["SwapFree:"] and words[1].isdigit():
            return int(words[1]) // 1024
    return 0


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"


MEMORY_CHECK = Check(name="memory", looks_at="memory for each compile", run=_examine_memory)
