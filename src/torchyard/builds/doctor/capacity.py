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

from torchyard.builds.doctor.context import DoctorContext
from torchyard.builds.doctor.finding import DoctorFinding, blocker, note, warning
from torchyard.builds.recipe import Recipe
from torchyard.machine.facts.isolation import read_limits
from torchyard.machine.facts.memory import amount_kib
from torchyard.machine.system.file_tree import FileTree

_GIB: Final = 1 << 30
_SCRATCH_GIB: Final = 1.0
_CUDA_SCRATCH_GIB: Final = 6.0
"""Margins for temporary files of compilers below TMPDIR, chosen by us: nvcc keeps an intermediate file
per architecture there while it runs."""


def examine_disk(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check disk space for the build and for TMPDIR."""
    folder = _existing(Path(context.plan.folder if context.plan else Path.cwd()))
    scratch = Path(context.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the default of the compilers
    needed_gib = sum(recipe.disk_gib for recipe in context.recipes)
    scratch_gib = _CUDA_SCRATCH_GIB if context.wants_cuda else _SCRATCH_GIB
    if not scratch.is_dir():
        yield warning(
            f"TMPDIR is {scratch}, which is not a folder",
            why="compilers then use another folder, often on a small disk",
            fix=f"mkdir -p {shlex.quote(str(scratch))}",
        )
        scratch = folder
    if context.plan is not None and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        yield blocker(
            f"programs cannot be executed from {folder}",
            why="the file system is mounted noexec, and a build runs programs that it has built",
            fix="set TORCHYARD_HOME to a folder on another disk",
        )
    shared = folder.stat().st_dev == scratch.stat().st_dev
    free_gib = _free_gib(folder)
    total_gib = needed_gib + (scratch_gib if shared else 0)
    if context.recipes and free_gib < total_gib:
        begun = context.plan is not None and (Path(context.plan.folder) / "steps").is_dir()
        yield DoctorFinding(
            severity="warns" if begun else "blocks",
            what=f"{folder} has {free_gib:.1f} GiB free, but the build needs {total_gib:.1f} GiB",
            why="estimate of the recipes for source, objects and result"
            + (" (an earlier attempt has already used part of it)" if begun else ""),
            fix="free disk space, or set TORCHYARD_HOME to a folder on another disk",
        )
    if not shared and _free_gib(scratch) < scratch_gib:
        yield warning(
            f"{scratch}, the folder for temporary files of compilers, has only"
            f" {_free_gib(scratch):.1f} GiB free",
            why=f"{scratch_gib:.0f} GiB are recommended; compilers may fail with `No space left on device`",
            fix=f"export TMPDIR={shlex.quote(str(folder))}",
        )


def _existing(path: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next((place for place in (path, *path.parents) if place.is_dir()), Path("/"))


def _free_gib(path: Path) -> float:
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize / _GIB


_GPU_WORDS = ("flash", "cuda", "hip", "attention")
_ORDINARY_MIB = 2400
"""Largest CPU compile of PyTorch 2.6 measured on aarch64 with gcc 14."""


def examine_memory(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check memory for each compile."""
    limits = read_limits(context.root)
    if not limits.total_mib:
        yield note("the memory size of this machine cannot be read")
        return
    swap_kib = amount_kib(FileTree(context.root), "SwapFree") or 0
    with_swap_mib = limits.total_mib + swap_kib // 1024
    requirements = [_heaviest(context, recipe) for recipe in context.recipes] or [
        ("", _ORDINARY_MIB)
    ]
    name, needed_mib = max(requirements, key=lambda item: item[1])
    subject = f"the largest compile ({name})" if name else "a large compile of PyTorch"
    if needed_mib > with_swap_mib:
        yield DoctorFinding(
            severity="blocks" if context.recipes else "warns",
            what=f"{subject} needs {_gib(needed_mib)}, but there are only {_gib(with_swap_mib)}",
            why=f"memory and swap {limits.memory_why} together; the kernel would kill the compiler",
            fix="add swap: fallocate -l 8G /swapfile && chmod 600 /swapfile && mkswap /swapfile"
            " && swapon /swapfile",
        )
    elif needed_mib > limits.available_mib:
        yield warning(
            f"{subject} needs {_gib(needed_mib)}, but only {_gib(limits.available_mib)} are free",
            why=f"{_gib(limits.total_mib)} {limits.memory_why}, the rest is in use; the machine would swap",
            fix="stop other programs first: ps -eo rss,pid,comm --sort=-rss | head",
        )
    jobs = context.plan.jobs if context.plan else 0
    for recipe in context.recipes:
        together_mib = jobs * recipe.job_memory_mib
        if jobs > 1 and together_mib > with_swap_mib:
            fewer = max(with_swap_mib // recipe.job_memory_mib, 1)
            yield warning(
                f"{jobs} jobs of {recipe.name} need {_gib(together_mib)} together",
                why=f"a typical compile takes {recipe.job_memory_mib} MiB, and there are"
                f" {_gib(with_swap_mib)}",
                fix=f"--jobs {fewer}, or --jobs auto",
            )


def _heaviest(context: DoctorContext, recipe: Recipe) -> tuple[str, int]:
    """Return name and MiB of the largest compile of a recipe; GPU files count for GPU builds only."""
    gpu = context.wants_cuda or context.wants_rocm
    heavy = {
        pattern: mib
        for pattern, mib in recipe.heavy.items()
        if gpu or not any(word in pattern.lower() for word in _GPU_WORDS)
    }
    ordinary = {recipe.name: recipe.job_memory_mib}
    return max((heavy | ordinary).items(), key=lambda item: item[1])


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"
